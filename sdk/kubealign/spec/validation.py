"""Measuring on held-out rows, and stopping by what is measured."""

from pydantic import Field, model_validator

from kubealign.spec.base import MOST, Name, ShortText, Spec, exactly_one, merged_by
from kubealign.spec.data import Data
from kubealign.spec.rewards import RewardFunction


class ValidationScore(Spec):
    """A function that scores responses sampled for validation. It is measured, never trained on."""

    name: Name = Field(description="Unique in the job, also among the rewards; in the metrics as val/NAME.")
    function: RewardFunction = Field(description="The function.")
    timeout_seconds: float = Field(
        30.0, gt=0, description="A function that has not answered by then is stopped and the job fails."
    )


class ValidationSampling(Spec):
    """Responses sampled to the validation prompts. Reported as val/reward/NAME for the job's rewards,
    val/NAME for the scores, val/response_length."""

    samples_per_prompt: int = Field(1, ge=1, le=MOST, description="Responses sampled to each prompt.")
    temperature: float = Field(1.0, ge=0, description="0: always the likeliest token.")
    scores: list[ValidationScore] = Field(
        default_factory=list,
        max_length=16,
        json_schema_extra=merged_by("name"),
        description="What else the responses are measured by.",
    )


class Target(Spec):
    """Stop as soon as the metric gets there. Exactly one of atLeast and atMost."""

    at_least: float | None = Field(None, description="Stop at this value or above.")
    at_most: float | None = Field(None, description="Stop at this value or below.")

    @model_validator(mode="after")
    def _one(self) -> "Target":
        exactly_one(self, ["at_least", "at_most"], example="atLeast: 0.5")
        return self

    def reached(self, value: float) -> bool:
        if self.at_least is not None:
            return value >= self.at_least
        assert self.at_most is not None
        return value <= self.at_most


class EarlyStopping(Spec):
    """Ends the job, as succeeded, by a validation metric."""

    metric: ShortText = Field(description="A name under val/, such as val/loss or val/exact.")
    target: Target = Field(description="The value that is enough.")


class Validation(Spec):
    """Held-out rows, measured before, during and after."""

    data: Data = Field(description="Rows; the member is the algorithm's own, or prompts.")
    sampling: ValidationSampling | None = Field(
        None, description="Sample responses to the rows' prompts. Always done by algorithms that sample."
    )
    every_steps: int | None = Field(
        None, ge=1, le=MOST, description="Steps between measurements; null: only at start and end."
    )
    at_start: bool = Field(True, description="Measure the first weights.")
    at_end: bool = Field(True, description="Measure the last weights.")
    group_by: ShortText | None = Field(
        None, description="Column of the rows; every figure is reported for each of its values too."
    )
    early_stopping: EarlyStopping | None = Field(
        None, description="End the job when a metric is good enough."
    )
