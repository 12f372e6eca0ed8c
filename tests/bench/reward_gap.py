"""How much less reward a job has than another after it has learned from as many samples. Pure."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_VERSIONS = 3


@dataclass(frozen=True)
class RewardGap:
    """Mean rewards of the same versions of the policy. error: the standard error of their difference, from
    the spread of the samples' rewards."""

    base: float
    other: float
    error: float

    @property
    def gap(self) -> float:
        return self.other - self.base

    @staticmethod
    def error_of_mean(gaps: Sequence["RewardGap"]) -> float:
        """Of the mean of gaps that do not depend on each other."""
        return math.sqrt(sum(gap.error**2 for gap in gaps)) / len(gaps)


def reward_gap(
    base: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]], samples: int
) -> RewardGap:
    """From the lines of metrics of two jobs whose steps have so many samples: over the last three versions of
    the weights that both sampled from. A version is the number of steps learned from: a step's own samples
    are of an earlier one, the earlier the staler they are. Raises RuntimeError where there are no three."""
    left, right = _by_version(base), _by_version(other)
    common = sorted(left.keys() & right.keys())[-_VERSIONS:]
    if len(common) < _VERSIONS:
        raise RuntimeError(
            f"{_VERSIONS} versions of the weights have to be sampled from on both sides, and are no more "
            f"than {common}: {sorted(left)} on the one, {sorted(right)} on the other"
        )
    variance = sum(side[version]["reward/std"] ** 2 for side in (left, right) for version in common)
    return RewardGap(
        statistics.mean(left[version]["reward/mean"] for version in common),
        statistics.mean(right[version]["reward/mean"] for version in common),
        math.sqrt(variance / samples) / len(common),
    )


def _by_version(lines: Sequence[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """The last step with samples of each version; steps with samples of several are left out."""
    return {
        line["step"] - 1 - int(line["rollout/staleness"]): line
        for line in lines
        if line["rollout/staleness"] == line["rollout/staleness_max"]
    }
