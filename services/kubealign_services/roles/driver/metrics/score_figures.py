"""Metrics of reward models besides their rewards."""

from collections.abc import Iterable
from statistics import fmean

from kubealign.v1 import scoring_pb2


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
