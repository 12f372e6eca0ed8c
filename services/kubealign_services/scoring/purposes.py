"""Purposes of the rollouts that scorers take from the bus."""

from kubealign.spec.job import AlignmentJob

#: Purpose of the rollouts that the policy is trained on.
TRAINING = "train"


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
