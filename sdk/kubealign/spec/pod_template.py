"""What a job may say about its pods: an allow-list of a pod's own fields, laid over what kubealign makes."""

from enum import StrEnum
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, model_validator

from kubealign.spec.base import (
    ENV_NAME,
    MOST,
    QUALIFIED_NAME,
    ObjectName,
    Spec,
    exactly_one,
    incoherent,
    merged_by,
    unique,
)
from kubealign.spec.pod_volumes import ObjectKey, Volume, VolumeMount
from kubealign.spec.quantities import Quantity

#: These labels, those that begin so, and environment variables that do, are the operator's own.
RESERVED_LABELS = ("app.kubernetes.io/managed-by", "app.kubernetes.io/name")
RESERVED_PREFIX = "kubealign.dev/"
RESERVED_VARIABLES = "KUBEALIGN_"

Key: TypeAlias = Annotated[str, Field(pattern=QUALIFIED_NAME, max_length=317)]
Text: TypeAlias = Annotated[str, Field(max_length=4096)]
LabelValue: TypeAlias = Annotated[str, Field(max_length=63)]


class PodMetadata(Spec):
    """Labels and annotations of the pods, beside the operator's own."""

    labels: dict[Key, LabelValue] | None = Field(None, max_length=64, description="Such as Kueue's.")
    annotations: dict[Key, Text] | None = Field(None, max_length=64, description="Notes of any kind.")

    @model_validator(mode="after")
    def _own(self) -> "PodMetadata":
        taken = [
            (("labels", key), value, "is set by kubealign itself: remove it")
            for key, value in (self.labels or {}).items()
            if key in RESERVED_LABELS or key.startswith(RESERVED_PREFIX)
        ]
        if taken:
            raise incoherent("PodMetadata", *taken)
        return self


class TolerationOperator(StrEnum):
    """Exists: any value. Equal: the value given."""

    EXISTS = "Exists"
    EQUAL = "Equal"


class TaintEffect(StrEnum):
    """What a taint does to pods that do not tolerate it."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class Toleration(Spec):
    """A taint of nodes that the pods put up with."""

    key: Key | None = Field(None, description="The taint's key; null: every taint, with Exists.")
    operator: TolerationOperator | None = Field(None, description="How the value is compared; null: Equal.")
    value: LabelValue | None = Field(None, description="The taint's value, with Equal.")
    effect: TaintEffect | None = Field(None, description="Which effect; null: all.")
    toleration_seconds: int | None = Field(
        None, ge=0, le=MOST, description="With NoExecute: how long it is put up with; null: for ever."
    )


class Affinity(Spec):
    """Which nodes and neighbours are wanted, as in a pod of Kubernetes. The fields within are checked when
    the pods are made."""

    node_affinity: dict[str, Any] | None = Field(None, max_length=8, description="Which nodes.")
    pod_affinity: dict[str, Any] | None = Field(None, max_length=8, description="Near which pods.")
    pod_anti_affinity: dict[str, Any] | None = Field(None, max_length=8, description="Far from which pods.")


class WhenUnsatisfiable(StrEnum):
    """DoNotSchedule: the pod waits. ScheduleAnyway: it goes where it is spread best."""

    DO_NOT_SCHEDULE = "DoNotSchedule"
    SCHEDULE_ANYWAY = "ScheduleAnyway"


class LabelSelector(Spec):
    """Pods by their labels."""

    match_labels: dict[Key, LabelValue] | None = Field(
        None, max_length=16, description="Labels that they have."
    )


class TopologySpread(Spec):
    """How evenly pods are spread over nodes, racks or zones."""

    max_skew: int = Field(ge=1, le=MOST, description="Most pods that one place may have more than another.")
    topology_key: Key = Field(description="Label of the nodes that names the place.")
    when_unsatisfiable: WhenUnsatisfiable = Field(
        description="What becomes of a pod that cannot be spread so."
    )
    label_selector: LabelSelector | None = Field(None, description="Which pods are counted.")
    min_domains: int | None = Field(None, ge=1, le=MOST, description="Fewest places.")


class SecretName(Spec):
    """A Secret of the job's namespace."""

    name: ObjectName = Field(description="Its name.")


class Resources(Spec):
    """What a process may use and what is set aside for it."""

    requests: dict[Key, Quantity] | None = Field(
        None, max_length=16, description="Set aside; null: the limits."
    )
    limits: dict[Key, Quantity] | None = Field(
        None, max_length=16, description="At most; devices such as nvidia.com/gpu stand here."
    )


class FieldPath(Spec):
    """A field of the pod itself."""

    field_path: Annotated[str, Field(min_length=1, max_length=256)] = Field(
        description="Such as status.hostIP."
    )


class EnvSource(Spec):
    """Where a variable's value comes from: exactly one."""

    secret_key_ref: ObjectKey | None = Field(None, description="A Secret.")
    config_map_key_ref: ObjectKey | None = Field(None, description="A ConfigMap.")
    field_ref: FieldPath | None = Field(None, description="The pod.")

    @model_validator(mode="after")
    def _one(self) -> "EnvSource":
        exactly_one(self, ["secret_key_ref", "config_map_key_ref", "field_ref"])
        return self


class EnvVariable(Spec):
    """A variable of the process's environment. Exactly one of value and valueFrom must be set."""

    name: Annotated[str, Field(pattern=ENV_NAME, max_length=256)] = Field(
        description="Names that begin with KUBEALIGN_ are kubealign's own."
    )
    value: Text | None = Field(None, description="Its value.")
    value_from: EnvSource | None = Field(None, description="Where its value comes from.")

    @model_validator(mode="after")
    def _sound(self) -> "EnvVariable":
        exactly_one(self, ["value", "value_from"], example='value: ""')
        if self.name.startswith(RESERVED_VARIABLES):
            raise incoherent("EnvVariable", (("name",), self.name, "is set by kubealign itself: remove it"))
        return self


class PullPolicy(StrEnum):
    """When the image is fetched."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class Container(Spec):
    """What may be said of the process's container."""

    name: Literal["main"] = Field(description="The one container that a pod of kubealign's has.")
    image: Annotated[str, Field(min_length=1, max_length=1024)] | None = Field(
        None, description="It must have kubealign in it; null: the platform's."
    )
    image_pull_policy: PullPolicy | None = Field(None, description="When it is fetched.")
    resources: Resources | None = Field(
        None, description="CPU, memory, devices; null: the platform's defaults."
    )
    env: Annotated[list[EnvVariable] | None, unique("name")] = Field(
        None, max_length=64, json_schema_extra=merged_by("name"), description="Variables, by name."
    )
    volume_mounts: Annotated[list[VolumeMount] | None, unique("mountPath")] = Field(
        None,
        max_length=32,
        json_schema_extra=merged_by("mountPath"),
        description="Where volumes are seen, by mountPath.",
    )


class PodFields(Spec):
    """The fields of a pod's spec that a job may set."""

    node_selector: dict[Key, LabelValue] | None = Field(
        None, max_length=32, description="Labels that a node must have."
    )
    tolerations: list[Toleration] | None = Field(None, max_length=32, description="Taints put up with.")
    affinity: Affinity | None = Field(None, description="Nodes and neighbours that are wanted.")
    topology_spread_constraints: list[TopologySpread] | None = Field(
        None, max_length=8, description="How the pods are spread."
    )
    priority_class_name: ObjectName | None = Field(None, description="Who gives way to whom.")
    scheduler_name: ObjectName | None = Field(None, description="Who places the pods.")
    runtime_class_name: ObjectName | None = Field(None, description="What runs the containers.")
    image_pull_secrets: Annotated[list[SecretName] | None, unique("name")] = Field(
        None, max_length=16, json_schema_extra=merged_by("name"), description="To fetch images with."
    )
    volumes: Annotated[list[Volume] | None, unique("name")] = Field(
        None, max_length=32, json_schema_extra=merged_by("name"), description="Volumes, by name."
    )
    containers: Annotated[list[Container] | None, unique("name")] = Field(
        None, max_length=1, json_schema_extra=merged_by("name"), description="The container `main`."
    )


class PodTemplate(Spec):
    """A patch of the pods, in the shape of a pod template of Kubernetes. Lists are merged by name (of
    volumeMounts by mountPath; tolerations and spread constraints are added), objects field by field. A role's
    own patch is laid over the job's. Ignored on one machine."""

    metadata: PodMetadata | None = Field(None, description="Labels and annotations.")
    spec: PodFields | None = Field(None, description="Where the pods run, and with what.")
