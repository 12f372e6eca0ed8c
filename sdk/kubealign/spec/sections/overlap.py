"""Overlap of the computations of a step."""

from pydantic import Field, model_validator

from kubealign.spec.base import SpecModel, field_errors

#: Error of models that take turns over samples that arrive one by one.
NEEDS_COMPLETE_BATCH = (
    "samples that are scored as they arrive are scored by all models: set scoreOnArrival to false"
)


class Overlap(SpecModel):
    """Computations of a step that run at the same time. Turned off, each can be measured or debugged alone.

    Samples and metrics stay the same, up to the last bits where models score other samples together.
    """

    score_on_arrival: bool = Field(
        True,
        description="Rewards and reference score samples while others are still generated, and trainer and "
        "critic compute what rollout.scoring says. false: the step's batch is scored once it is complete.",
    )
    parallel_scoring: bool = Field(
        True,
        description="Rewards, reference, critic and trainer compute the step's scores, values and old "
        "log-probabilities at the same time. false: one after another; needs scoreOnArrival: false.",
    )
    parallel_training: bool = Field(
        True,
        description="Trainer and critic train at the same time, and the refit starts once the trainer has "
        "finished. false: trainer, critic and refit follow one another; only for algorithms with a critic.",
    )

    @model_validator(mode="after")
    def _complete_batch(self) -> "Overlap":
        """Check that models take turns only over a complete batch."""
        if self.score_on_arrival and not self.parallel_scoring:
            problem = (("parallelScoring",), self.parallel_scoring, NEEDS_COMPLETE_BATCH)
            raise field_errors("Overlap", problem)
        return self
