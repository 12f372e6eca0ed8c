"""What the API answers, field by field. Names are camelCase on the wire."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from kubealign.spec.job import API_VERSION, KIND


class Answer(BaseModel):
    """A part of an answer."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class Resource(Answer):
    """An AlignmentJob as its site holds it: a local run is told in the same words as one in a cluster."""

    model_config = ConfigDict(extra="allow")

    api_version: str = Field(alias="apiVersion", examples=[API_VERSION])
    kind: Literal["AlignmentJob"]
    metadata: dict[str, Any] = Field(
        description="name, namespace, uid, creationTimestamp, resourceVersion, labels ...",
        examples=[{"name": "sums", "namespace": "default", "labels": {"team": "maths"}}],
    )
    spec: dict[str, Any] = Field(description="As docs/spec.md says.", examples=[{"maxSteps": 100}])
    status: dict[str, Any] = Field(
        default_factory=dict,
        description="phase, message, step, maxSteps, reward, kl, weightVersion, conditions ...",
        examples=[{"phase": "Running", "step": 12, "maxSteps": 100}],
    )


class ListMetadata(Answer):
    """Where the list goes on."""

    continue_: str = Field("", alias="continue", description="Where the next page begins; empty at the end.")
    remaining_item_count: int | None = Field(None, description="Jobs after this page, where that is known.")
    total: int | None = Field(None, description="Jobs that match, where that is known.")
    resource_version: str = Field("", description="A position in the site's history.")


class ResourceList(Answer):
    """A page of jobs."""

    api_version: str = Field(examples=[API_VERSION])
    kind: Literal["AlignmentJobList"] = Field(examples=[f"{KIND}List"])
    metadata: ListMetadata
    items: list[Resource]


class Session(Answer):
    """Who asks, and where."""

    user: str = Field(examples=["jane"])
    site: Literal["cluster", "local"]
    read_only: bool = Field(description="No request may change a job.")
    namespace: str = Field(description="Where a job without a namespace belongs.", examples=["default"])
    version: str = Field(description="Of kubealign.", examples=["0.1.0"])


class Namespaces(Answer):
    """Namespaces whose jobs the caller may list."""

    items: list[str] = Field(examples=[["default", "research"]])


class ScaleMetadata(Answer):
    """Whose scale it is."""

    name: str = Field(examples=["sums"])
    namespace: str = Field(examples=["default"])
    resource_version: str = ""


class ScaleSpec(Answer):
    """What is wanted."""

    replicas: int = Field(ge=0, le=2**31 - 1, description="Rollout workers.", examples=[4])


class ScaleStatus(Answer):
    """What there is."""

    replicas: int = Field(description="Rollout workers.", examples=[2])


class Nothing(Answer):
    """An empty object."""


class Scale(Answer):
    """How many rollout workers: autoscaling/v1."""

    api_version: Literal["autoscaling/v1"] = "autoscaling/v1"
    kind: Literal["Scale"] = "Scale"
    metadata: ScaleMetadata
    spec: ScaleSpec
    status: ScaleStatus


class WantedScale(Answer):
    """What to send for another number of rollout workers; a whole Scale will do as well."""

    spec: ScaleSpec


class Suspension(Answer):
    """Whether the job shall wait."""

    model_config = ConfigDict(extra="forbid", strict=True)

    suspend: bool = Field(description="true: save, stop and give everything back; false: go on from there.")


class StepFigures(Answer):
    """The figures of one step, as docs/metrics.md explains them."""

    entry: str = Field(description="Its place in the stream.", examples=["1763740800000-0"])
    step: int = Field(examples=[12])
    fence: int = Field(description="Of two reports of one step the higher fence holds.", examples=[1])
    values: dict[str, float | None] = Field(
        description="null: not a number, or infinite.",
        examples=[{"reward/mean": 0.71, "kl/reference": 0.02, "seconds/step": 3.4}],
    )


class Figures(Answer):
    """Steps in the order in which they were reported."""

    items: list[StepFigures]
    next: str = Field(
        description="What to give as `after` for those that follow.", examples=["1763740800000-0"]
    )


class SampleFigures(Answer):
    """A response that the policy gave."""

    entry: str = Field(examples=["1763740800000-3"])
    step: int = Field(examples=[12])
    prompt: str = Field(examples=["12+30="])
    response: str = Field(examples=["42"])
    reward: float | None = Field(examples=[1.0])
    rewards: dict[str, float | None] = Field(description="By source.", examples=[{"right": 1.0}])
    weight_version: int = Field(description="Of the weights that wrote it.", examples=[11])
    truncated: bool = Field(description="It was cut off at the longest length allowed.")
    group_id: str = Field(description="The same for the responses to one prompt.", examples=["g-12-4"])
    purpose: str = Field(description="train, or validation.", examples=["train"])
    tokens: list[str] = Field(
        default_factory=list,
        description="The response's, each as the text that it adds.",
        examples=[["4", "2"]],
    )
    token_values: dict[str, list[float | None]] = Field(
        default_factory=dict,
        description="A number for each token: logprobs (the engine's), trainer_logprobs, logprob_gap, kl, "
        "advantages, values.",
        examples=[{"logprobs": [-0.1, -0.3], "advantages": [0.5, 0.5]}],
    )


class Samples(Answer):
    """Responses."""

    items: list[SampleFigures]
    next: str = Field(description="What to give as `after` for newer ones.", examples=["1763740800000-3"])


class ProcessFigures(Answer):
    """One process of a job."""

    name: str = Field(examples=["rollout-0"])
    role: str = Field(examples=["rollout"])
    state: str = Field(
        description="Waiting, Starting, Ready, Restarting, Finished, Failed or Stopped.", examples=["Ready"]
    )
    restarts: int = Field(examples=[0])
    message: str = Field(description="What it waits for, or why it failed.", examples=[""])
    started: datetime | None = Field(examples=["2026-11-21T12:00:00Z"])
    says: dict[str, Any] = Field(
        description="What it last said of itself.",
        examples=[{"weight_version": 11, "tokens_per_second": 812.5}],
    )
    silent_seconds: float | None = Field(
        description="Since it said so; null: never, or too long ago.", examples=[0.8]
    )
    where: str = Field(description="The pod, or the process id.", examples=["sums-rollout-0"])


class Processes(Answer):
    """The processes of a job."""

    items: list[ProcessFigures]


class Event(Answer):
    """Something that happened to a job."""

    time: datetime = Field(examples=["2026-11-21T12:00:00Z"])
    type: str = Field(description="Normal or Warning.", examples=["Normal"])
    reason: str = Field(examples=["Started"])
    message: str = Field(examples=["the trainer is ready"])
    count: int = Field(examples=[1])


class Events(Answer):
    """What happened to a job, oldest first."""

    items: list[Event]


class Finding(Answer):
    """Something that looks sick, or worth knowing, and what people do about it."""

    severity: str = Field(description="Critical, Warning or Info.", examples=["Warning"])
    title: str = Field(examples=["KL is running away"])
    detail: str = Field(examples=["kl/reference rose from 0.02 to 3.1 within 20 steps"])
    remedy: str = Field(examples=["raise kl.fixed.coefficient, or lower the learning rate"])
    metric: str = Field(description="The figure that shows it; empty: none.", examples=["kl/reference"])
    anchor: str = Field(description="Of docs/cookbook.md.", examples=["kl-running-away"])


class Health(Answer):
    """What looks sick; nothing: nothing does."""

    items: list[Finding]
