"""Pod templates of jobs: an allow-list of pod fields, applied as a patch to kubealign's pods."""

from enum import StrEnum
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, model_validator

from kubealign.spec.base import (
    ENV_NAME_PATTERN,
    MAX_INT32,
    QUALIFIED_NAME_PATTERN,
    ObjectName,
    SpecModel,
    field_errors,
    list_map_schema,
    require_exactly_one,
    unique_by,
)
from kubealign.spec.pods.images import ImageName, PullPolicy
from kubealign.spec.pods.quantities import Quantity
from kubealign.spec.pods.volumes import ObjectKeyRef, SecretReference, Volume, VolumeMount

#: Labels, label prefix and environment variable prefix that are reserved for the operator.
RESERVED_LABELS = ("app.kubernetes.io/managed-by", "app.kubernetes.io/name")
RESERVED_LABEL_PREFIX = "kubealign.dev/"
RESERVED_VARIABLE_PREFIX = "KUBEALIGN_"

Key: TypeAlias = Annotated[str, Field(pattern=QUALIFIED_NAME_PATTERN, max_length=317)]
Text: TypeAlias = Annotated[str, Field(max_length=4096)]
LabelValue: TypeAlias = Annotated[str, Field(max_length=63)]


class PodMetadata(SpecModel):
    """Labels and annotations of the pods, in addition to the operator's own."""

    labels: dict[Key, LabelValue] | None = Field(None, max_length=64, description="Labels of any kind.")
    annotations: dict[Key, Text] | None = Field(None, max_length=64, description="Annotations of any kind.")

    @model_validator(mode="after")
    def _own(self) -> "PodMetadata":
        """Reject labels that kubealign sets."""
        taken = [
            (("labels", key), value, "is set by kubealign itself: remove it")
            for key, value in (self.labels or {}).items()
            if key in RESERVED_LABELS or key.startswith(RESERVED_LABEL_PREFIX)
        ]
        if taken:
            raise field_errors("PodMetadata", *taken)
        return self


class TolerationOperator(StrEnum):
    """Exists: any value. Equal: the given value."""

    EXISTS = "Exists"
    EQUAL = "Equal"


class TaintEffect(StrEnum):
    """Effect of a taint on pods that do not tolerate the taint."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class Toleration(SpecModel):
    """A node taint that the pods tolerate."""

    key: Key | None = Field(None, description="Key of the taint; null: every taint, with operator Exists.")
    operator: TolerationOperator | None = Field(None, description="Comparison of the value; null: Equal.")
    value: LabelValue | None = Field(None, description="Value of the taint, with operator Equal.")
    effect: TaintEffect | None = Field(None, description="Effect that is tolerated; null: all effects.")
    toleration_seconds: int | None = Field(
        None, ge=0, le=MAX_INT32, description="With NoExecute: duration of the toleration; null: unlimited."
    )


class Affinity(SpecModel):
    """Node and pod affinity as in a Kubernetes pod.

    The nested fields are validated when the pods are created.
    """

    node_affinity: dict[str, Any] | None = Field(None, max_length=8, description="Node affinity.")
    pod_affinity: dict[str, Any] | None = Field(None, max_length=8, description="Pod affinity.")
    pod_anti_affinity: dict[str, Any] | None = Field(None, max_length=8, description="Pod anti-affinity.")


class WhenUnsatisfiable(StrEnum):
    """DoNotSchedule: the pod waits. ScheduleAnyway: the pod is scheduled where the skew is smallest."""

    DO_NOT_SCHEDULE = "DoNotSchedule"
    SCHEDULE_ANYWAY = "ScheduleAnyway"


class LabelSelector(SpecModel):
    """Selection of pods by labels."""

    match_labels: dict[Key, LabelValue] | None = Field(
        None, max_length=16, description="Labels that the pods must have."
    )


class TopologySpreadConstraint(SpecModel):
    """Spread of the pods over topology domains such as nodes, racks or zones."""

    max_skew: int = Field(
        ge=1, le=MAX_INT32, description="Maximum difference in the number of pods between two domains."
    )
    topology_key: Key = Field(description="Node label that identifies the domain.")
    when_unsatisfiable: WhenUnsatisfiable = Field(
        description="Treatment of a pod that would exceed the maximum skew."
    )
    label_selector: LabelSelector | None = Field(None, description="Pods that are counted.")
    min_domains: int | None = Field(None, ge=1, le=MAX_INT32, description="Minimum number of domains.")


class ResourceRequirements(SpecModel):
    """Resource requests and limits of a process."""

    requests: dict[Key, Quantity] | None = Field(
        None, max_length=16, description="Requested quantities; null: the limits."
    )
    limits: dict[Key, Quantity] | None = Field(
        None, max_length=16, description="Maximum quantities, including devices such as nvidia.com/gpu."
    )


class PodFieldRef(SpecModel):
    """A field of the pod."""

    field_path: Annotated[str, Field(min_length=1, max_length=256)] = Field(
        description="Path of the field, such as status.hostIP."
    )


class EnvSource(SpecModel):
    """Source of a variable's value; exactly one member must be set."""

    secret_key_ref: ObjectKeyRef | None = Field(None, description="Key of a Secret.")
    config_map_key_ref: ObjectKeyRef | None = Field(None, description="Key of a ConfigMap.")
    field_ref: PodFieldRef | None = Field(None, description="Field of the pod.")

    @model_validator(mode="after")
    def _one(self) -> "EnvSource":
        """Check that exactly one source is set."""
        require_exactly_one(self, ["secret_key_ref", "config_map_key_ref", "field_ref"])
        return self


class EnvVariable(SpecModel):
    """An environment variable of the process. Exactly one of value and valueFrom must be set."""

    name: Annotated[str, Field(pattern=ENV_NAME_PATTERN, max_length=256)] = Field(
        description="Name of the variable; names that begin with KUBEALIGN_ are reserved."
    )
    value: Text | None = Field(None, description="Value of the variable.")
    value_from: EnvSource | None = Field(None, description="Source of the value.")

    @model_validator(mode="after")
    def _sound(self) -> "EnvVariable":
        """Check that one value is set and that the name is not reserved."""
        require_exactly_one(self, ["value", "value_from"], example='value: ""')
        if self.name.startswith(RESERVED_VARIABLE_PREFIX):
            raise field_errors("EnvVariable", (("name",), self.name, "is set by kubealign itself: remove it"))
        return self


class Container(SpecModel):
    """The process's container."""

    name: Literal["main"] = Field(description="Name of the single container of kubealign's pods.")
    image: ImageName | None = Field(
        None, description="Container image with kubealign installed; null: the platform's image."
    )
    image_pull_policy: PullPolicy | None = Field(None, description="Image pull policy.")
    resources: ResourceRequirements | None = Field(
        None, description="CPU, memory, devices; null: the platform's defaults."
    )
    env: Annotated[list[EnvVariable] | None, unique_by("name")] = Field(
        None,
        max_length=64,
        json_schema_extra=list_map_schema("name"),
        description="Environment variables, merged by name.",
    )
    volume_mounts: Annotated[list[VolumeMount] | None, unique_by("mountPath")] = Field(
        None,
        max_length=32,
        json_schema_extra=list_map_schema("mountPath"),
        description="Mounted volumes, merged by mountPath.",
    )


class PodSpecPatch(SpecModel):
    """Fields of a pod's spec that a job may set."""

    node_selector: dict[Key, LabelValue] | None = Field(
        None, max_length=32, description="Labels that a node must have."
    )
    tolerations: list[Toleration] | None = Field(
        None, max_length=32, description="Node taints that the pods tolerate."
    )
    affinity: Affinity | None = Field(None, description="Node and pod affinity.")
    topology_spread_constraints: list[TopologySpreadConstraint] | None = Field(
        None, max_length=8, description="Topology spread constraints."
    )
    priority_class_name: ObjectName | None = Field(
        None, description="Priority class for scheduling and preemption."
    )
    service_account_name: ObjectName | None = Field(
        None,
        description="ServiceAccount of the pods, for the workload identity of a cloud; null: default. Its "
        "token for the Kubernetes API is not mounted.",
    )
    scheduler_name: ObjectName | None = Field(None, description="Name of the scheduler.")
    runtime_class_name: ObjectName | None = Field(None, description="Runtime class of the containers.")
    image_pull_secrets: Annotated[list[SecretReference] | None, unique_by("name")] = Field(
        None,
        max_length=16,
        json_schema_extra=list_map_schema("name"),
        description="Secrets for pulling images.",
    )
    volumes: Annotated[list[Volume] | None, unique_by("name")] = Field(
        None, max_length=32, json_schema_extra=list_map_schema("name"), description="Volumes, merged by name."
    )
    containers: Annotated[list[Container] | None, unique_by("name")] = Field(
        None, max_length=1, json_schema_extra=list_map_schema("name"), description="The container `main`."
    )


class PodTemplate(SpecModel):
    """A patch of the pods in the form of a Kubernetes pod template.

    Lists are merged by name (volumeMounts by mountPath; tolerations and spread constraints are appended),
    objects field by field. A role's own patch is applied on top of the job's. Ignored on one machine.
    """

    profile: ObjectName | None = Field(
        None,
        description="Name of a pod profile of the platform (`jobs.profiles` of the Helm chart), which this "
        "template changes. A role's profile replaces that of the job, which has no effect on the pods of "
        "preparation, driver and bus. null: none.",
    )
    metadata: PodMetadata | None = Field(None, description="Labels and annotations.")
    spec: PodSpecPatch | None = Field(None, description="Scheduling, volumes and container of the pods.")
