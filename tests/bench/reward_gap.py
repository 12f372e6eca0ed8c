"""Compares the rewards of two jobs after the same number of samples. Pure functions."""

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
        """Return the standard error of the mean of independent gaps."""
        return math.sqrt(sum(gap.error**2 for gap in gaps)) / len(gaps)


def reward_gap(
    base: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]], samples: int
) -> RewardGap:
    """Compute the reward gap from the metrics of two jobs with `samples` samples per step, over the last
    three weight versions that both sampled from. A version is the number of steps learned from; the staler a
    step's samples, the earlier their version. Raises RuntimeError if there are fewer than three common
    versions."""
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
    """Return the last step that sampled from each version; steps with samples of several versions are left
    out."""
    return {
        line["step"] - 1 - int(line["rollout/staleness"]): line
        for line in lines
        if line["rollout/staleness"] == line["rollout/staleness_max"]
    }
