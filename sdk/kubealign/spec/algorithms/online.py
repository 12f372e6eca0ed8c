"""Base spec of online algorithms, whose steps sample from the policy and learn from the samples' rewards."""

from typing import ClassVar

from pydantic import Field

from kubealign.spec.algorithms.base import AlgorithmSpec, Requirement, steps_of_epochs
from kubealign.spec.base import MAX_INT32, field_errors


class OnlineSpec(AlgorithmSpec):
    """Fields of all algorithms that sample the batch of each step."""

    online: ClassVar[bool] = True
    runs_workflows: ClassVar[bool] = True
    samples: ClassVar[bool] = True
    rewards: ClassVar[Requirement] = Requirement.NEEDED
    data: ClassVar[str] = "prompts"
    #: Adds one greedy response per prompt, used as the baseline and excluded from the loss.
    greedy_baseline: ClassVar[bool] = False

    prompts_per_step: int = Field(64, ge=1, le=MAX_INT32, description="Prompts per step.")
    samples_per_prompt: int = Field(1, ge=1, le=MAX_INT32, description="Responses sampled for each prompt.")
    max_epochs: int | None = Field(
        None,
        ge=1,
        le=MAX_INT32,
        description="End the job after as many steps as this many epochs over the prompts take, unless "
        "maxSteps ends it earlier; the learning rate schedule then ends with them. The last step is filled "
        "with prompts of the next epoch. Replacements of failed or dropped groups are not counted. With "
        "data.prompts.curriculum the number of steps is the same: prompts of further epochs take the place "
        "of skipped ones.",
    )
    minibatch_sequences: int | None = Field(
        None,
        ge=1,
        le=MAX_INT32,
        description="Sequences per optimiser step (minibatch size); must divide the sequences of a "
        "step. null: one minibatch per step; with epochsPerStep 1 and maxStaleness 0 the importance ratio is "
        "then 1, and clipping never acts.",
    )
    epochs_per_step: int = Field(
        1, ge=1, le=MAX_INT32, description="Optimisation epochs over the sequences of each step."
    )
    max_staleness: int = Field(
        0,
        ge=0,
        le=1024,
        description="Asynchronous training: largest number of weight versions by which the weights that "
        "generated a sample may lag behind the trainer's. Above 0 the loss is decoupled (Fu "
        "et al. 2025, AReaL): the importance ratio is relative to the step's own weights, "
        "and importance weighting corrects for samples of older weights.",
    )

    @property
    def sequences_per_step(self) -> int:
        """Sequences sampled per step, without greedy baselines."""
        return self.prompts_per_step * (self.samples_per_prompt + int(self.reference_sample))

    @property
    def trained_sequences_per_step(self) -> int:
        """Sequences trained on per step and epoch: all that are sampled, unless the algorithm selects."""
        return self.sequences_per_step

    def steps_of_data(self, rows: int) -> int | None:
        return steps_of_epochs(self.max_epochs, rows, self.prompts_per_step)

    @property
    def updates_per_step(self) -> int:
        """Optimiser steps per step."""
        total = self.trained_sequences_per_step
        return self.epochs_per_step * (total // (self.minibatch_sequences or total))


def require_whole_minibatches(spec: OnlineSpec, requirement: str, unit: int = 1) -> None:
    """Raise ValidationError unless minibatchSequences divides the trained sequences of a step.

    Args:
        requirement: Requirement with the numbers in it, for the message.
        unit: Consecutive sequences that a minibatch must not divide; divides the trained sequences.
    """
    size, total = spec.minibatch_sequences, spec.trained_sequences_per_step
    if size is not None and (size % unit != 0 or total % size != 0):
        candidates = range(unit, max(unit, min(size, total)) + 1, unit)
        nearest = max(divisor for divisor in candidates if total % divisor == 0)
        problem = (("minibatchSequences",), size, f"{requirement}, such as {nearest}")
        raise field_errors(type(spec).__name__, problem)
