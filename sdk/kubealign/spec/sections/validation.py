"""Validation on held-out rows, and early stopping."""

from pydantic import Field, model_validator

from kubealign.spec.base import (
    MAX_INT32,
    EntryName,
    ShortText,
    SpecModel,
    list_map_schema,
    require_exactly_one,
)
from kubealign.spec.pods.egress import EGRESS_DESCRIPTION, Egress
from kubealign.spec.sections.data import Data
from kubealign.spec.sections.rewards import RewardFunction


class ValidationScore(SpecModel):
    """A function that scores responses sampled for validation. The score is reported, never trained on."""

    name: EntryName = Field(
        description="Unique in the job, also among the rewards; reported in the metrics as val/NAME."
    )
    function: RewardFunction = Field(description="The scoring function.")
    timeout_seconds: float = Field(
        30.0,
        gt=0,
        description="Longest time that the function may take for one sample. Samples that were scored "
        "together and take longer are scored again in smaller calls.",
    )
    egress: Egress = Field(
        default_factory=list, description=f"Destinations that the function {EGRESS_DESCRIPTION}"
    )


class ValidationSampling(SpecModel):
    """Sampling of responses to the validation prompts.

    Reported as val/reward/NAME for the job's rewards, val/NAME for the scores, and val/response_length.
    """

    samples_per_prompt: int = Field(1, ge=1, le=MAX_INT32, description="Responses sampled for each prompt.")
    temperature: float = Field(1.0, ge=0, description="Sampling temperature; 0: greedy decoding.")
    scores: list[ValidationScore] = Field(
        default_factory=list,
        max_length=16,
        json_schema_extra=list_map_schema("name"),
        description="Additional scores of the responses.",
    )


class EarlyStoppingTarget(SpecModel):
    """Target value of a metric. Exactly one of atLeast and atMost must be set."""

    at_least: float | None = Field(None, description="Stop at this value or above.")
    at_most: float | None = Field(None, description="Stop at this value or below.")

    @model_validator(mode="after")
    def _one(self) -> "EarlyStoppingTarget":
        """Check that exactly one bound is set."""
        require_exactly_one(self, ["at_least", "at_most"], example="atLeast: 0.5")
        return self

    def is_reached(self, value: float) -> bool:
        """Return True if the value meets the target."""
        if self.at_least is not None:
            return value >= self.at_least
        assert self.at_most is not None
        return value <= self.at_most


class EarlyStopping(SpecModel):
    """Early stopping: the job ends as Succeeded when a validation metric reaches its target."""

    metric: ShortText = Field(description="A metric under val/, such as val/loss or val/exact.")
    target: EarlyStoppingTarget = Field(description="Target value of the metric.")


class Validation(SpecModel):
    """Validation on held-out rows, before, during and after training."""

    data: Data = Field(description="Held-out rows; the same member as the algorithm's data, or prompts.")
    sampling: ValidationSampling | None = Field(
        None, description="Sampling of responses to the rows' prompts. Always done by algorithms that sample."
    )
    every_steps: int | None = Field(
        None, ge=1, le=MAX_INT32, description="Steps between validations; null: only at start and end."
    )
    at_start: bool = Field(True, description="Validate the initial weights.")
    at_end: bool = Field(True, description="Validate the final weights.")
    group_by: ShortText | None = Field(
        None, description="Column by whose values every metric is reported in addition."
    )
    early_stopping: EarlyStopping | None = Field(None, description="Early stopping on a validation metric.")
