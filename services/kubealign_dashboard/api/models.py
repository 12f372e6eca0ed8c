"""Models of the API's responses. Field names are camelCase in JSON."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from kubealign.human_labels import MAX_REASON, Verdict
from kubealign.spec.base import DNS_LABEL_PATTERN, JOB_NAME_PATTERN
from kubealign.spec.job import API_VERSION, KIND


class ApiModel(BaseModel):
    """Base of the response models."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class JobDocument(ApiModel):
    """An AlignmentJob. A local run has the same shape as a job of a cluster."""

    model_config = ConfigDict(extra="allow")

    api_version: str = Field(alias="apiVersion", examples=[API_VERSION])
    kind: Literal["AlignmentJob"]
    metadata: dict[str, Any] = Field(
        description="name, namespace, uid, creationTimestamp, resourceVersion, labels ...",
        examples=[{"name": "sums", "namespace": "default", "labels": {"team": "maths"}}],
    )
    spec: dict[str, Any] = Field(description="The spec, see docs/spec.md.", examples=[{"maxSteps": 100}])
    status: dict[str, Any] = Field(
        default_factory=dict,
        description="phase, message, step, maxSteps, reward, kl, weightVersion, conditions ...",
        examples=[{"phase": "Running", "step": 12, "maxSteps": 100}],
    )


class ListMetadata(ApiModel):
    """Metadata of a page of jobs."""

    continue_: str = Field(
        "", alias="continue", description="Token of the next page; empty on the last page."
    )
    remaining_item_count: int | None = Field(None, description="Jobs after this page, if known.")
    total: int | None = Field(None, description="Matching jobs, if known.")
    resource_version: str = Field("", description="resourceVersion of the list.")


class JobDocumentList(ApiModel):
    """A page of jobs."""

    api_version: str = Field(examples=[API_VERSION])
    kind: Literal["AlignmentJobList"] = Field(examples=[f"{KIND}List"])
    metadata: ListMetadata
    items: list[JobDocument]


class SessionInfo(ApiModel):
    """The caller and the site."""

    user: str = Field(examples=["jane"])
    site: Literal["cluster", "local"]
    read_only: bool = Field(description="True: every change of a job is refused.")
    namespace: str = Field(description="Default namespace of jobs.", examples=["default"])
    version: str = Field(description="Version of kubealign.", examples=["0.1.0"])


class NamespaceList(ApiModel):
    """Namespaces whose jobs the caller may list."""

    items: list[str] = Field(examples=[["default", "research"]])


class ScaleMetadata(ApiModel):
    """Metadata of a scale."""

    name: str = Field(examples=["sums"])
    namespace: str = Field(examples=["default"])
    resource_version: str = ""


class ScaleSpec(ApiModel):
    """The desired scale."""

    replicas: int = Field(ge=0, le=2**31 - 1, description="Desired rollout workers.", examples=[4])


class ScaleStatus(ApiModel):
    """The observed scale."""

    replicas: int = Field(description="Running rollout workers.", examples=[2])


class EmptyObject(ApiModel):
    """An empty object."""


class ScaleDocument(ApiModel):
    """Number of rollout workers: autoscaling/v1."""

    api_version: Literal["autoscaling/v1"] = "autoscaling/v1"
    kind: Literal["Scale"] = "Scale"
    metadata: ScaleMetadata
    spec: ScaleSpec
    status: ScaleStatus


class ScaleRequest(ApiModel):
    """A request to change the number of rollout workers; a complete Scale is accepted as well."""

    spec: ScaleSpec


class SuspendRequest(ApiModel):
    """A request to suspend or resume a job."""

    model_config = ConfigDict(extra="forbid", strict=True)

    suspend: bool = Field(
        description="true: save a checkpoint, stop and release all resources; false: resume."
    )


class StepMetricsItem(ApiModel):
    """Metrics of one step, see docs/metrics.md."""

    entry: str = Field(description="Id of the entry in the stream.", examples=["1763740800000-0"])
    step: int = Field(examples=[12])
    fence: int = Field(
        description="Of two reports of one step the one with the higher fence is valid.", examples=[1]
    )
    values: dict[str, float | None] = Field(
        description="null: not a number, or infinite.",
        examples=[{"reward/mean": 0.71, "kl/reference": 0.02, "seconds/step": 3.4}],
    )


class StepMetricsList(ApiModel):
    """Steps in the order in which they were reported."""

    items: list[StepMetricsItem]
    next: str = Field(description="Value of `after` for the next request.", examples=["1763740800000-0"])


class SampleItem(ApiModel):
    """A response that the policy generated."""

    entry: str = Field(examples=["1763740800000-3"])
    step: int = Field(examples=[12])
    prompt: str = Field(examples=["12+30="])
    response: str = Field(examples=["42"])
    reward: float | None = Field(examples=[1.0])
    rewards: dict[str, float | None] = Field(
        description="Reward by source; null: it does not apply to the response.",
        examples=[{"right": 1.0, "style": None}],
    )
    explanations: dict[str, str] = Field(
        default_factory=dict,
        description="By source: what the reward reports about the response.",
        examples=[{"right": "read 42, which is the answer"}],
    )
    weight_version: int = Field(
        description="Version of the weights that generated it; -1: the reference's.", examples=[11]
    )
    truncated: bool = Field(description="True: cut off at the maximum length.")
    group_id: str = Field(description="Equal for all responses to one prompt.", examples=["g-12-4"])
    purpose: str = Field(description="train, validation, validation/SET, stage or judge.", examples=["train"])
    tokens: list[str] = Field(
        default_factory=list,
        description="Tokens of the response, each as the text that it adds.",
        examples=[["4", "2"]],
    )
    token_values: dict[str, list[float | None]] = Field(
        default_factory=dict,
        description="One value per token: logprobs (the engine's), trainer_logprobs, logprob_gap, kl, "
        "advantages, values.",
        examples=[{"logprobs": [-0.1, -0.3], "advantages": [0.5, 0.5]}],
    )


class SampleList(ApiModel):
    """A page of samples."""

    items: list[SampleItem]
    next: str = Field(description="Value of `after` for newer samples.", examples=["1763740800000-3"])


class ValidationSampleItem(ApiModel):
    """A response to a held-out prompt."""

    row: int = Field(description="Row of the prompt in the held-out rows; -1: unknown.", examples=[3])
    set: str = Field(description="Evaluation set; empty: the job's only one.", examples=[""])
    prompt: str = Field(examples=["12+30="])
    response: str = Field(examples=["42"])
    scores: dict[str, float | None] = Field(
        description="By source; null: it does not apply to the response.", examples=[{"right": 1.0}]
    )
    explanations: dict[str, str] = Field(
        description="By source: what the score reports about the response.",
        examples=[{"right": "read 42, which is the answer"}],
    )
    truncated: bool = Field(description="True: cut off at the maximum length.")
    shortened: bool = Field(description="True: the middle of a long text is not stored for display.")


class ValidationSampleList(ApiModel):
    """A page of the responses of a validation."""

    items: list[ValidationSampleItem]
    total: int = Field(description="Responses of the validation.", examples=[200])


class ComparedSide(ApiModel):
    """One side of a comparison."""

    namespace: str = Field(examples=["default"])
    name: str = Field(examples=["sums"])
    step: int = Field(examples=[100])


class DiffPartItem(ApiModel):
    """A part of a text."""

    text: str = Field(examples=["The answer is "])
    changed: bool = Field(description="True: the other text lacks it.")


class ComparedSampleItem(ValidationSampleItem):
    """A response, in parts."""

    parts: list[DiffPartItem] = Field(description="The response in parts; joined, they are its text.")
    subject: str = Field(description="Subject of labels of this response.", examples=["9f86d081884c7d65"])


class PairItem(ApiModel):
    """Two responses to one prompt."""

    id: str = Field(
        description="Identity of the prompt; equal in all comparisons.", examples=["9f86d081884c7d65"]
    )
    set: str = Field(description="Evaluation set; empty: the job's only one.", examples=[""])
    prompt: str = Field(examples=["12+30="])
    difference: float | None = Field(
        description="Right's score minus left's; null: one of them has none.", examples=[1.0]
    )
    unit: Literal["word", "line", "text"] = Field(
        description="By what the texts were compared; text: they are too long to be compared."
    )
    subject: str = Field(
        description="Subject of labels of this pair; the same when the sides are swapped.",
        examples=["2c26b46b68ffc68f"],
    )
    left: ComparedSampleItem
    right: ComparedSampleItem


class ComparisonPage(ApiModel):
    """A page of the comparison of two validations."""

    left: ComparedSide
    right: ComparedSide
    sets: list[str] = Field(description="Evaluation sets of the pairs.", examples=[[""]])
    scores: list[str] = Field(description="Scores, first those of both sides.", examples=[["right"]])
    score: str = Field(description="The score by which pairs are counted and sorted.", examples=["right"])
    pairs: int = Field(description="Prompts that both sides answered.", examples=[200])
    left_higher: int = Field(description="Pairs in which left has the higher score.", examples=[10])
    right_higher: int = Field(description="Pairs in which right has the higher score.", examples=[30])
    equal: int = Field(description="Pairs with equal scores.", examples=[160])
    unscored: int = Field(description="Pairs in which a side has no score.", examples=[0])
    mean_difference: float | None = Field(
        description="Mean of right's score minus left's; null: no pair has both.", examples=[0.1]
    )
    unpaired_left: int = Field(description="Responses of left only.", examples=[0])
    unpaired_right: int = Field(description="Responses of right only.", examples=[0])
    total: int = Field(description="Pairs that match the filter.", examples=[40])
    items: list[PairItem]


class LabelledSide(ApiModel):
    """The other side of a labelled pair."""

    model_config = ConfigDict(extra="forbid")

    namespace: str = Field(pattern=DNS_LABEL_PATTERN, max_length=63, examples=["default"])
    name: str = Field(pattern=JOB_NAME_PATTERN, max_length=52, examples=["sums"])
    step: int = Field(ge=0, le=2**31 - 1, examples=[200])


class LabelRequest(ApiModel):
    """A label of a response of the path's job, or of it as the left side of a pair."""

    model_config = ConfigDict(extra="forbid")

    verdict: Verdict | None = Field(
        description="left, right, bothGood or bothBad of a pair; wrong of one response; null withdraws."
    )
    reason: str = Field("", max_length=MAX_REASON)
    prompt_id: str = Field(
        pattern=r"^[0-9a-f]{32}$", description="`id` of the pair in a comparison.", examples=["9f" * 16]
    )
    step: int = Field(ge=0, le=2**31 - 1, description="Step of the validation.", examples=[100])
    other: LabelledSide | None = Field(None, description="The right side; null: one response is labelled.")

    @model_validator(mode="after")
    def _check_verdict(self) -> "LabelRequest":
        allowed = [None, Verdict.WRONG] if self.other is None else [None, *_PAIR_VERDICTS]
        if self.verdict not in allowed:
            names = ", ".join("null" if verdict is None else str(verdict) for verdict in allowed)
            subject = "one response" if self.other is None else "a pair"
            raise ValueError(f"verdict {self.verdict} is not one of those of {subject}: {names}")
        return self


_PAIR_VERDICTS = tuple(verdict for verdict in Verdict if verdict is not Verdict.WRONG)


class LabelledResponseItem(ApiModel):
    """A labelled response."""

    namespace: str = Field(examples=["default"])
    name: str = Field(examples=["sums"])
    step: int = Field(examples=[100])
    response: str = Field(examples=["42"])


class HumanLabelItem(ApiModel):
    """A label that a person gave."""

    subject: str = Field(description="Identity of what is labelled.", examples=["2c26b46b68ffc68f"])
    verdict: Verdict | None
    reason: str = Field(examples=["the left one is wrong"])
    author: str = Field(description="The user who gave it.", examples=["jane"])
    time: float = Field(description="Seconds since the epoch.", examples=[1763740800.5])
    prompt_id: str = Field(description="`id` of the pair in a comparison.", examples=["9f86d081884c7d65"])
    prompt: str = Field(examples=["12+30="])
    left: LabelledResponseItem
    right: LabelledResponseItem | None = Field(description="null: the label is about one response.")


class HumanLabelList(ApiModel):
    """The current labels of a job."""

    items: list[HumanLabelItem]


class ProcessItem(ApiModel):
    """One process of a job."""

    name: str = Field(examples=["rollout-0"])
    role: str = Field(examples=["rollout"])
    state: str = Field(
        description="Waiting, Starting, Ready, Restarting, Finished, Failed or Stopped.", examples=["Ready"]
    )
    restarts: int = Field(examples=[0])
    message: str = Field(description="Reason for waiting or failure.", examples=[""])
    started: datetime | None = Field(examples=["2026-11-21T12:00:00Z"])
    says: dict[str, Any] = Field(
        description="The process's last heartbeat.",
        examples=[{"weight_version": 11, "tokens_per_second": 812.5}],
    )
    silent_seconds: float | None = Field(
        description="Seconds since the last heartbeat; null: none, or it has expired.", examples=[0.8]
    )
    where: str = Field(description="The pod, or the process id.", examples=["sums-rollout-0-0"])


class ProcessList(ApiModel):
    """The processes of a job."""

    items: list[ProcessItem]


class EventItem(ApiModel):
    """A Kubernetes event of a job."""

    time: datetime = Field(examples=["2026-11-21T12:00:00Z"])
    type: str = Field(description="Normal or Warning.", examples=["Normal"])
    reason: str = Field(examples=["Started"])
    message: str = Field(examples=["the trainer is ready"])
    count: int = Field(examples=[1])


class EventList(ApiModel):
    """Events of a job, oldest first."""

    items: list[EventItem]


class HealthFindingItem(ApiModel):
    """A symptom of an unhealthy job, with a remedy."""

    severity: str = Field(description="Critical, Warning or Info.", examples=["Warning"])
    title: str = Field(examples=["KL is running away"])
    detail: str = Field(examples=["kl/reference rose from 0.02 to 3.1 within 20 steps"])
    remedy: str = Field(examples=["raise kl.fixed.coefficient, or lower the learning rate"])
    metric: str = Field(description="The metric that shows it; empty: none.", examples=["kl/reference"])
    anchor: str = Field(description="Anchor in docs/cookbook.md.", examples=["kl-running-away"])


class HealthReport(ApiModel):
    """Findings about a job; empty when it is healthy."""

    items: list[HealthFindingItem]
