"""Advantages of the best of k against all subsets, listed one by one, and the paper's formula."""

import itertools
import math
import statistics
from math import comb

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kubealign.spec.algorithms import AdvantageCenter, AdvantageNormalization, AdvantageScale, GRPOSpec
from kubealign_services.algorithms.advantages.normalization import normalize


def advantages(returns: list[float], group: list[int], k: int, scale: AdvantageScale) -> list[float]:
    how = AdvantageNormalization(center=AdvantageCenter.GROUP, scale=scale, epsilon=0.1, pass_at_k=k)
    return normalize(torch.tensor(returns, dtype=torch.float64), torch.tensor(group), how).tolist()


@pytest.mark.parametrize("scale", [AdvantageScale.NONE, AdvantageScale.GROUP])
@settings(max_examples=30, deadline=None)
@given(
    samples=st.lists(st.tuples(st.integers(0, 1), st.integers(-3, 3)), min_size=1, max_size=12),
    k=st.integers(2, 4),
)
def test_equals_the_mean_over_all_subsets(
    scale: AdvantageScale, samples: list[tuple[int, int]], k: int
) -> None:
    group, returns = [g for g, _ in samples], [float(r) for _, r in samples]
    result = advantages(returns, group, k, scale)
    for number in set(group):
        members = [i for i, own in enumerate(group) if own == number]
        subsets = list(itertools.combinations(members, min(k, len(members))))
        best = [max(returns[i] for i in subset) for subset in subsets]
        deviation = statistics.pstdev(best) + 0.1 if scale is AdvantageScale.GROUP else 1.0
        for i in members:
            own = [value for subset, value in zip(subsets, best, strict=True) if i in subset]
            expected = (statistics.fmean(own) - statistics.fmean(best)) / deviation
            assert result[i] == pytest.approx(expected, abs=1e-9)


def test_equals_the_paper_s_formula_for_right_and_wrong_answers() -> None:
    """Chen et al. 2025, section 2.4: eight responses, two of them right, k = 4."""
    n, wrong, k = 8, 6, 4
    mean = 1 - comb(wrong, k) / comb(n, k)
    deviation = math.sqrt(mean * (1 - mean)) + 0.1
    right = (1 - mean) / deviation
    mistaken = (1 - mean - comb(wrong - 1, k - 1) / comb(n - 1, k - 1)) / deviation
    result = advantages([1, 0, 0, 1, 0, 0, 0, 0], [7] * 8, k, AdvantageScale.GROUP)
    assert result == pytest.approx([right, *[mistaken] * 2, right, *[mistaken] * 4], abs=1e-12)
    assert right > 0 > mistaken


def test_a_prompt_that_every_subset_solves_teaches_nothing() -> None:
    assert advantages([1, 1, 1, 0], [0] * 4, 2, AdvantageScale.NONE) == pytest.approx([0] * 4, abs=1e-12)


def test_k_is_at_most_the_samples_and_needs_groups() -> None:
    group = AdvantageNormalization(center=AdvantageCenter.GROUP, pass_at_k=5)
    with pytest.raises(ValueError, match=r"must be at most samplesPerPrompt \(4\)"):
        GRPOSpec(samples_per_prompt=4, advantage=group)
    with pytest.raises(ValueError, match="set center to Group"):
        AdvantageNormalization(center=AdvantageCenter.BATCH, pass_at_k=2)
