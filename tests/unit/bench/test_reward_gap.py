"""Reward gap between two jobs trained on the same number of samples."""

import math

import pytest
from tests.bench.reward_gap import RewardGap, reward_gap


def _line(step: int, mean: float, staleness: float = 0, most: float | None = None) -> dict[str, float]:
    return {
        "step": step,
        "reward/mean": mean,
        "reward/std": 0.2,
        "rollout/staleness": staleness,
        "rollout/staleness_max": staleness if most is None else most,
    }


def test_steps_are_compared_whose_samples_come_from_the_same_version() -> None:
    # Samples of step 3 have version 2 in the synchronous job, and version 0 in a job with a staleness of two.
    synchronous = [_line(step, step / 10) for step in (3, 4, 5, 6)]
    late = [_line(step, (step - 2) / 10 + 0.01, staleness=2) for step in (5, 6, 7, 8)]
    result = reward_gap(synchronous, late, samples=16)
    # Versions 3, 4 and 5: (0.4 + 0.5 + 0.6) / 3, and 0.01 more in the asynchronous job.
    assert result.base == pytest.approx(0.5)
    assert result.other == pytest.approx(0.51)
    assert result.gap == pytest.approx(0.01)
    # Six means of 16 samples with 0.2 each: sqrt(6 * 0.04 / 16) / 3.
    assert result.error == pytest.approx(math.sqrt(0.015) / 3)


def test_last_step_of_each_version_counts() -> None:
    synchronous = [_line(step, 0.5) for step in (1, 2, 3)]
    begun = [_line(1, 0.1), _line(2, 0.2, staleness=1), _line(3, 0.3, staleness=2)]
    late = [*begun, _line(4, 0.4, staleness=2), _line(5, 0.5, staleness=2)]
    assert reward_gap(synchronous, late, samples=4).other == pytest.approx((0.3 + 0.4 + 0.5) / 3)


def test_samples_of_several_versions_are_ignored() -> None:
    synchronous = [_line(step, 0.5) for step in (1, 2, 3)]
    mixed = [_line(1, 0.5), _line(2, 0.5), _line(3, 0.5, staleness=0.5, most=1)]
    with pytest.raises(RuntimeError, match=r"\[0, 1\]: \[0, 1, 2\] on the one, \[0, 1\] on the other"):
        reward_gap(synchronous, mixed, samples=4)


def test_mean_of_independent_gaps_has_a_lower_error() -> None:
    # sqrt(0.03^2 + 0.04^2) / 2
    gaps = [RewardGap(0.5, 0.5, 0.03), RewardGap(0.5, 0.5, 0.04)]
    assert RewardGap.error_of_mean(gaps) == pytest.approx(0.025)
