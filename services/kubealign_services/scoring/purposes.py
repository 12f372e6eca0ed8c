"""Purposes of the rollouts that scorers take from the bus."""

from kubealign.spec.held_out_rows import HeldOutRows
from kubealign.spec.job import AlignmentJob
from kubealign.spec.sections.rewards import Reward
from kubealign.spec.sections.validation import ValidationScore

#: Purpose of the rollouts that the policy is trained on.
TRAINING = "train"

#: Purpose of the rollouts of validation.data; those of a set have its name too.
VALIDATION = "validation"


def validation_purpose(set_name: str | None) -> str:
    """Return the purpose of the rollouts of a validation set; None: those of validation.data."""
    return VALIDATION if set_name is None else f"{VALIDATION}/{set_name}"


def initial_policy_purpose(set_name: str | None) -> str:
    """Return the purpose of the initial policy's responses to the rows of a validation set, which no scorer
    takes; None: the rows are those of validation.data.
    """
    # No name of a set is empty, so that the purpose is none of a validation set.
    return f"{VALIDATION}/{set_name or ''}/initial-policy"


def judgement_purpose(source: str) -> str:
    """Return the purpose of the policy's judgements for a reward or a validation score."""
    return f"judge@{source}"


def is_validation(purpose: str) -> bool:
    """Return True for the purpose of rollouts of a validation, of any set."""
    return purpose.partition("/")[0] == VALIDATION


def requested_purpose(purpose: str, source: str) -> str:
    """Return the purpose of a rollout that the driver publishes once more for one scorer alone.

    Args:
        purpose: Purpose of the rollout's work item.
        source: Name of the reward, or "reference".
    """
    # No name has this character, so that the purpose is none of a validation set.
    return f"{purpose}@{source}"


def training_purpose(job: AlignmentJob, source: str) -> str:
    """Return the purpose of the training rollouts that a scorer takes.

    With `overlap.scoreOnArrival` false these are the rollouts that the driver requests scores of, and not
    those that the rollout workers publish.
    """
    if job.spec.effective_overlap.score_on_arrival:
        return TRAINING
    return requested_purpose(TRAINING, source)


def scored_purposes(job: AlignmentJob, entry: Reward | ValidationScore) -> frozenset[str]:
    """Return the purposes of the rollouts that a reward or a validation score takes.

    A reward takes those of training, of validation.data, and of the validation sets that name it; a
    validation score those of its own rows. An entry that scores groups takes only the requests with all
    samples of a prompt.
    """
    is_reward = isinstance(entry, Reward)
    scored = [validation_purpose(rows.name) for rows in job.spec.held_out_rows if _scores(entry, rows)]
    if entry.scores_groups:
        purposes = [TRAINING, *scored] if is_reward else scored
        return frozenset(requested_purpose(purpose, entry.name) for purpose in purposes)
    return frozenset([training_purpose(job, entry.name), *scored] if is_reward else scored)


def _scores(entry: Reward | ValidationScore, rows: HeldOutRows) -> bool:
    """Return True if a reward or a validation score scores the responses to held-out rows."""
    if isinstance(entry, Reward):
        return rows.is_scored_by(entry)
    return any(score.name == entry.name for score in rows.scores)
