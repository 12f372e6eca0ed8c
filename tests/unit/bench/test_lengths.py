"""Response lengths with a long tail."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.bench.lengths import tailed


def test_a_step_has_the_mean_and_the_longest_that_the_table_states() -> None:
    for step in range(20):
        lengths = tailed(step, 64, 64, 512, seed=1)
        assert len(lengths) == 64
        assert sum(lengths) == 64 * 64
        assert max(lengths) == 512
        # A long tail: half of the answers are well below the mean.
        assert statistics.median(lengths) < 50


def test_lengths_are_those_of_seed_and_step_alone() -> None:
    assert tailed(3, 64, 64, 512, seed=1) == tailed(3, 64, 64, 512, seed=1)
    assert tailed(3, 64, 64, 512, seed=1) != tailed(4, 64, 64, 512, seed=1)
    assert tailed(3, 64, 64, 512, seed=1) != tailed(3, 64, 64, 512, seed=2)


@given(samples=st.integers(1, 80), longest=st.integers(1, 600), share=st.floats(0, 1), step=st.integers(0, 9))
def test_every_possible_mean_is_met_exactly(samples: int, longest: int, share: float, step: int) -> None:
    least, most = (longest + samples - 1) / samples, longest
    mean = round(least + share * (most - least))
    if mean * samples < longest + samples - 1:
        mean += 1
    if mean > longest:
        return
    lengths = tailed(step, samples, mean, longest, seed=7)
    assert len(lengths) == samples
    assert sum(lengths) == mean * samples
    assert max(lengths) == longest
    assert min(lengths) >= 1


@pytest.mark.parametrize(("mean", "longest"), [(4, 3), (1, 512), (64, 63)])
def test_impossible_lengths_are_rejected(mean: int, longest: int) -> None:
    with pytest.raises(ValueError, match=f"one of them {longest}: no mean of {mean}"):
        tailed(0, 16, mean, longest, seed=1)
