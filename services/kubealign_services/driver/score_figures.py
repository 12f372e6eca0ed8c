"""What reward models say beside their reward, as figures of a step."""

from collections.abc import Iterable
from statistics import fmean

from kubealign.v1 import scoring_pb2


def score_figures(scores: Iterable[scoring_pb2.Score]) -> dict[str, float]:
    """reward/NAME/ATTRIBUTE: mean of each score of a model with several. reward/NAME/disagreement: of an
    ensemble, mean over the responses of its members' deviation. Empty for all else."""
    found: dict[str, list[float]] = {}
    for score in scores:
        for name, value in score.attributes.items():
            found.setdefault(f"reward/{score.source}/{name}", []).append(value)
        if score.HasField("disagreement"):
            found.setdefault(f"reward/{score.source}/disagreement", []).append(score.disagreement)
    return {name: fmean(values) for name, values in found.items()}
