"""Normalisation of returns: by hand, and for every center and scale against a plain loop."""

import itertools
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kubealign.spec.algorithms import AdvantageCenter, AdvantageNormalization, AdvantageScale
from kubealign_services.algorithms.advantages.normalization import normalize


def test_values_by_hand() -> None:
    # Groups 1, 2, 6 and 5, 7. Less their means 3 and 6: -2, -1, 3, -1, 1. Squares 4 + 1 + 9 + 1 + 1 = 16, by
    # 4: the step's deviation of what is left is 2.
    returns = torch.tensor([1, 2, 6, 5, 7], dtype=torch.float64)
    group = torch.tensor([0, 0, 0, 1, 1])
    how = AdvantageNormalization(center=AdvantageCenter.GROUP, scale=AdvantageScale.BATCH, epsilon=0)
    assert normalize(returns, group, how).tolist() == pytest.approx([-1, -0.5, 1.5, -0.5, 0.5], abs=1e-12)
    # The deviation of the returns: mean 4.2; squares 10.24 + 4.84 + 3.24 + 0.64 + 7.84 = 26.8, by 4: 6.7.
    how = AdvantageNormalization(
        center=AdvantageCenter.GROUP, scale=AdvantageScale.BATCH_OF_RETURNS, epsilon=0
    )
    expected = [value / 6.7**0.5 for value in (-2, -1, 3, -1, 1)]
    assert normalize(returns, group, how).tolist() == pytest.approx(expected, abs=1e-12)
    # Less the mean of the others, 4, 3.5, 1.5, 7, 5: -3, -1.5, 4.5, -2, 2.
    how = AdvantageNormalization(center=AdvantageCenter.LEAVE_ONE_OUT)
    assert normalize(returns, group, how).tolist() == pytest.approx([-3, -1.5, 4.5, -2, 2], abs=1e-12)
    # The step's mean is 4.2; squares 10.24 + 4.84 + 3.24 + 0.64 + 7.84 = 26.8, over 4: 6.7.
    how = AdvantageNormalization(center=AdvantageCenter.BATCH, scale=AdvantageScale.BATCH, epsilon=0.5)
    expected = [(value - 4.2) / (6.7**0.5 + 0.5) for value in (1, 2, 6, 5, 7)]
    assert normalize(returns, group, how).tolist() == pytest.approx(expected, abs=1e-12)


FITTING = [
    (center, scale)
    for center, scale in itertools.product(AdvantageCenter, AdvantageScale)
    if (scale is AdvantageScale.NONE and center is not AdvantageCenter.OPTIMAL_TOKEN)
    or center in (AdvantageCenter.GROUP, AdvantageCenter.LEAVE_ONE_OUT)
    or (center is AdvantageCenter.BATCH and scale in (AdvantageScale.BATCH, AdvantageScale.BATCH_OF_RETURNS))
]


@pytest.mark.parametrize(("center", "scale"), FITTING)
@settings(max_examples=25, deadline=None)
@given(samples=st.lists(st.tuples(st.integers(0, 3), st.integers(-9, 9)), min_size=1, max_size=12))
def test_equals_a_plain_loop(
    center: AdvantageCenter, scale: AdvantageScale, samples: list[tuple[int, int]]
) -> None:
    # GroupMean is for returns that are never negative.
    lowest = 9 if scale is AdvantageScale.GROUP_MEAN else 0
    group, returns = [g for g, _ in samples], [float(r + lowest) for _, r in samples]
    how = AdvantageNormalization(center=center, scale=scale, epsilon=0.1)
    result = normalize(torch.tensor(returns, dtype=torch.float64), torch.tensor(group), how).tolist()

    def same(i: int) -> list[int]:
        return [j for j in range(len(samples)) if group[j] == group[i]]

    left = []
    for i, value in enumerate(returns):
        others = [returns[j] for j in same(i) if j != i]
        taken = {
            AdvantageCenter.NONE: 0.0,
            AdvantageCenter.BATCH: statistics.fmean(returns),
            AdvantageCenter.GROUP: statistics.fmean([returns[j] for j in same(i)]),
            AdvantageCenter.LEAVE_ONE_OUT: statistics.fmean(others) if others else value,
        }[center]
        left.append(value - taken)
    for i, value in enumerate(left):
        among = {
            AdvantageScale.BATCH: left,
            AdvantageScale.BATCH_OF_RETURNS: returns,
        }.get(scale, [left[j] for j in same(i)])
        deviation = statistics.stdev(among) if len(among) > 1 else 0.0
        if scale is AdvantageScale.GROUP_MEAN:
            deviation = statistics.fmean([returns[j] for j in same(i)])
        expected = value if scale is AdvantageScale.NONE else value / (deviation + 0.1)
        assert result[i] == pytest.approx(expected, abs=1e-9)


def test_max_rl_by_hand() -> None:
    """Tajwar et al. 2026: (r - p) / p with the pass rate p: a rare success counts more than a common one."""
    returns = torch.tensor([1, 0, 0, 0, 1, 1, 1, 0], dtype=torch.float64)
    group = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    how = AdvantageNormalization(center=AdvantageCenter.GROUP, scale=AdvantageScale.GROUP_MEAN, epsilon=0)
    third = 1 / 3
    expected = [3, -1, -1, -1, third, third, third, -1]
    assert normalize(returns, group, how).tolist() == pytest.approx(expected, abs=1e-12)
    with pytest.raises(ValueError, match=r"GroupMean divides .* -0\.5: it needs returns of 0 or more"):
        normalize(returns - 0.75, group, how)


@pytest.mark.parametrize(
    ("center", "scale"), [pair for pair in FITTING if pair[0] is not AdvantageCenter.NONE]
)
def test_equal_returns_give_zero_advantage(center: AdvantageCenter, scale: AdvantageScale) -> None:
    returns = torch.full((7,), 0.1)
    group = torch.tensor([0, 0, 0, 1, 1, 1, 2])
    result = normalize(returns, group, AdvantageNormalization(center=center, scale=scale))
    assert result.abs().max() < 0.02
