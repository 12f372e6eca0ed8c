"""Spec of jobs that measure models on held-out prompts and train nothing."""

from collections.abc import Iterator
from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from kubealign.spec.algorithms.base import AlgorithmSpec, Requirement, ResultKind
from kubealign.spec.base import MAX_INT32, SpecModel, field_errors, list_map_schema, unique_by
from kubealign.spec.paths import DocumentPath
from kubealign.spec.sections.models import Model

#: Path of the further weights below the spec.
CHECKPOINTS_PATH: DocumentPath = ("algorithm", "evaluate", "checkpoints")

#: File in the result of an evaluation: the metrics of each model.
RESULT_METRICS_FILE = "metrics.json"

#: Message for a checkpoint that is not later than the policy.
NOT_LATER = "must be above step"


class EvaluatedCheckpoint(SpecModel):
    """Further weights of the policy, such as those of a later step of its training."""

    step: int = Field(ge=1, le=MAX_INT32, description="Step of the metrics of these weights.")
    model: Model = Field(description="The weights; architecture and vocabulary must be the policy's.")


class EvaluateSpec(AlgorithmSpec):
    """Measures the job's validation on the policy, and on further weights of it, without training."""

    runs_workflows: ClassVar[bool] = True
    accepts_branches: ClassVar[bool] = True
    samples: ClassVar[bool] = True
    rewards: ClassVar[Requirement] = Requirement.ALLOWED
    data: ClassVar[str] = "prompts"
    makes: ClassVar[ResultKind] = ResultKind.METRICS

    step: int = Field(
        0, ge=0, le=MAX_INT32, description="Step of the metrics of policy.model: the step that made it."
    )
    checkpoints: Annotated[list[EvaluatedCheckpoint], unique_by("step")] = Field(
        default_factory=list,
        max_length=64,
        json_schema_extra=list_map_schema("step"),
        description="Further weights, which the same workers load one after the other, in the order of "
        "their steps.",
    )

    def known_steps(self, max_steps: int | None, rows: int | None) -> int | None:
        """Return the last step that is measured."""
        return max(self.steps)

    @property
    def steps(self) -> list[int]:
        """Steps that are measured, ascending, the policy's first."""
        return [self.step, *sorted(checkpoint.step for checkpoint in self.checkpoints)]

    def numbered_models(self) -> Iterator[tuple[int, int, Model]]:
        """Yield (index in checkpoints, step, model) of the further weights."""
        for index, checkpoint in enumerate(self.checkpoints):
            yield index, checkpoint.step, checkpoint.model

    @model_validator(mode="after")
    def _later_than_policy(self) -> "EvaluateSpec":
        """Check that the weights of each checkpoint are later than the policy's."""
        text = f"{NOT_LATER}, {self.step}, which is that of policy.model"
        problems = [
            (("checkpoints", index, "step"), step, text)
            for index, step, _ in self.numbered_models()
            if step <= self.step
        ]
        if problems:
            raise field_errors("Evaluate", *problems)
        return self
