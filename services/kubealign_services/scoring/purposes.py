"""Purposes of the rollouts that scorers take from the bus."""

from kubealign.spec.job import AlignmentJob
from kubealign.spec.sections.rewards import Reward

#: Purpose of the rollouts that the policy is trained on.
TRAINING = "train"

#: Purpose of the rollouts of validation.data; those of a set have its name too.
VALIDATION = "validation"


def validation_purpose(set_name: str | None) -> str:
    """Return the purpose of the rollouts of a validation set; None: those of validation.data."""
    return VALIDATION if set_name is None else f"{VALIDATION}/{set_name}"


def is_validation(purpose: str) -> bool:
    """Return True for the purpose of rollouts of a validation, of any set."""
    return purpose.partition("/")[0] == VALIDATION


def reward_purposes(job: AlignmentJob, reward: Reward) -> frozenset[str]:
    """Return the purposes of the rollouts that a reward scores: those of training, of validation.data, and of
    the validation sets that name the reward.
    """
    scored = [rows.name for rows in job.spec.held_out_rows if rows.is_scored_by(reward)]
    return frozenset({training_purpose(job, reward.name), *map(validation_purpose, scored)})


def score_purposes(job: AlignmentJob, name: str) -> frozenset[str]:
    """Return the purpose of the rollouts that a validation score of this name scores: those of its set."""
    return frozenset(
        validation_purpose(rows.name)
        for rows in job.spec.held_out_rows
        if any(score.name == name for score in rows.scores)
    )


def requested_purpose(purpose: str, source: str) -> str:
    """Return the purpose of a rollout that the driver publishes once more for one scorer alone.

    Args:
        purpose: Purpose of the rollout's work item.
        source: Name of the reward, or "reference".
    """
    return f"{purpose}/{source}"


def training_purpose(job: AlignmentJob, source: str) -> str:
    """Return the purpose of the training rollouts that a scorer takes.

    With `overlap.scoreOnArrival` false these are the rollouts that the driver requests scores of, and not
    those that the rollout workers publish.
    """
    if job.spec.effective_overlap.score_on_arrival:
        return TRAINING
    return requested_purpose(TRAINING, source)
