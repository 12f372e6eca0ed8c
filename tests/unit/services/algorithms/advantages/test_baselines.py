"""Leave-one-out and group moments."""

import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kubealign_services.algorithms.advantages.baselines import (
    constant_group_share,
    group_mean_and_std,
    leave_one_out_mean,
)
from kubealign_services.algorithms.advantages.statistics import masked_mean


def float64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_leave_one_out_by_hand() -> None:
    # Group 5: 1, 2, 6: (2 + 6) / 2 = 4, (1 + 6) / 2 = 3.5, (1 + 2) / 2 = 1.5. Group 2: 10, 20: each the
    # other. Group 9: alone.
    baseline = leave_one_out_mean(float64(1, 10, 2, 20, 6, 7), torch.tensor([5, 2, 5, 2, 5, 9]))
    assert baseline.tolist() == pytest.approx([4, 20, 3.5, 10, 1.5, 7], abs=1e-12)


def test_group_moments_by_hand() -> None:
    # Group 0: 1, 2, 6: mean 3, squares 4 + 1 + 9 = 14, std sqrt(14 / 2) = 2.6457513. Group 1: alone.
    means, stds = group_mean_and_std(float64(1, 2, 5, 6), torch.tensor([0, 0, 1, 0]))
    assert means.tolist() == pytest.approx([3, 3, 5, 3], abs=1e-12)
    assert stds.tolist() == pytest.approx([2.6457513110645907] * 2 + [0, 2.6457513110645907], abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.floats(-10, 10)), min_size=1, max_size=20),
)
def test_groups_of_any_size_equal_a_plain_loop(samples: list[tuple[int, float]]) -> None:
    rewards, group = float64(*[r for _, r in samples]), torch.tensor([g for g, _ in samples])
    baseline = leave_one_out_mean(rewards, group).tolist()
    means, stds = (moment.tolist() for moment in group_mean_and_std(rewards, group))
    for i, (mine, reward) in enumerate(samples):
        others = [r for j, (g, r) in enumerate(samples) if g == mine and j != i]
        everyone = [*others, reward]
        assert baseline[i] == pytest.approx(statistics.fmean(others) if others else reward, abs=1e-9)
        assert means[i] == pytest.approx(statistics.fmean(everyone), abs=1e-9)
        assert stds[i] == pytest.approx(statistics.stdev(everyone) if others else 0.0, abs=1e-7)


def test_constant_group_share() -> None:
    # Groups 0 (1, 1) and 2 (alone) are constant; group 1 (0, 1) is not.
    assert constant_group_share(float64(1, 0, 1, 1, 3), torch.tensor([0, 1, 0, 1, 2])) == pytest.approx(2 / 3)


def test_masked_mean_ignores_other_entries() -> None:
    values, mask = float64(1, 1e9, 2, float("nan"), 6), torch.tensor([1, 0, 1, 0, 1])
    assert float(masked_mean(values, mask)) == pytest.approx(3)
    assert float(masked_mean(values, torch.zeros(5))) == 0
