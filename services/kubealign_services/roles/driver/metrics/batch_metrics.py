"""Metrics of a batch: the log-probability gap between rollout engine and trainer, and reward model
attributes.
"""

from collections.abc import Iterable
from statistics import fmean

from kubealign.v1 import scoring_pb2
from kubealign_services.algorithms.losses.logprob_gap import comparable_tokens
from kubealign_services.batch.packed import Batch
from kubealign_services.roles.driver.errors import UnrecoverableError


def measure_logprob_gap(batch: Batch) -> dict[str, float]:
    """Return the mean and largest absolute difference of engine_logprobs and old_logprobs, in nats.

    The gap reveals silently wrong numbers first. It covers the response tokens generated with the weights
    that train on them; empty if no such token exists.
    """
    mask = comparable_tokens(batch)
    if not bool(mask.any()):
        return {}
    gap = (batch.token("engine_logprobs") - batch.token("old_logprobs"))[mask].abs()
    return {"rollout/logprob_gap_mean": float(gap.mean()), "rollout/logprob_gap_max": float(gap.max())}


def check_logprob_gap(metrics: dict[str, float], bound: float) -> None:
    """Raise UnrecoverableError if the mean gap exceeds the gate."""
    mean = metrics["rollout/logprob_gap_mean"]
    if not mean <= bound:
        raise UnrecoverableError(
            f"the log-probabilities of rollout engine and trainer differ by {mean:.4g} nats on average, "
            f"more than rollout.mismatchGate.mean ({bound:g}): the engine does not compute with the "
            "trainer's weights or precision"
        )


def reward_model_metrics(scores: Iterable[scoring_pb2.Score]) -> dict[str, float]:
    """Return the mean attributes and ensemble disagreement of the scores.

    reward/NAME/ATTRIBUTE: mean of each score of a model with several. reward/NAME/disagreement: mean over
    the responses of the deviation between an ensemble's members. Empty for all other scores.
    """
    values_by_metric: dict[str, list[float]] = {}
    for score in scores:
        for name, value in score.attributes.items():
            values_by_metric.setdefault(f"reward/{score.source}/{name}", []).append(value)
        if score.HasField("disagreement"):
            values_by_metric.setdefault(f"reward/{score.source}/disagreement", []).append(score.disagreement)
    return {name: fmean(values) for name, values in values_by_metric.items()}
