"""Estimators of several responses, against enumeration and the normal approximation."""

import itertools
import math
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubealign_services.roles.driver.validation.estimators import (
    bootstrap_interval,
    majority_score,
    pass_at_k,
)


@given(st.lists(st.booleans(), min_size=1, max_size=7), st.data())
def test_pass_at_k_is_the_share_of_subsets_with_a_passing_response(
    passed: list[bool], data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, len(passed)))
    subsets = list(itertools.combinations(passed, k))
    expected = sum(map(any, subsets)) / len(subsets)
    assert pass_at_k(len(passed), sum(passed), k) == pytest.approx(expected, abs=1e-12)


def test_pass_at_k_by_hand() -> None:
    assert pass_at_k(4, 1, 2) == 0.5
    assert pass_at_k(4, 0, 4) == 0 and pass_at_k(4, 1, 4) == 1
    assert pass_at_k(200, 13, 100) == pytest.approx(1 - math.prod(1 - 100 / n for n in range(188, 201)))


@pytest.mark.parametrize(
    ("answers", "scores", "score"),
    [
        (["4", "4", "5"], [1, 1, 0], 1.0),
        (["4", "5", "5"], [1, 0, 0], 0.0),
        # A tie counts as half.
        (["4", "5"], [1, 0], 0.5),
        (["4", "5", "5", "4", "6"], [1, 0, 0, 1, 1], 0.5),
        # Responses without an answer do not vote.
        (["4", None, None], [1, 0, 0], 1.0),
        ([None, None], [1, 0], 0.5),
        # Equal answers may differ in their scores.
        (["4", "4"], [1, 0.5], 0.75),
    ],
)
def test_the_most_frequent_answer_has_the_score(
    answers: list[str | None], scores: list[float], score: float
) -> None:
    assert majority_score(answers, scores) == score


def test_the_interval_of_a_mean_is_that_of_a_normal_variable() -> None:
    values = np.random.default_rng(3).normal(2.0, 5.0, 400)
    low, high = bootstrap_interval(values.tolist(), [1] * 400, 0.95)
    error = 1.96 * values.std() / 20
    assert low == pytest.approx(values.mean() - error, abs=0.15 * error)
    assert high == pytest.approx(values.mean() + error, abs=0.15 * error)
    narrow = bootstrap_interval(values.tolist(), [1] * 400, 0.5)
    assert low < narrow[0] < narrow[1] < high


def test_prompts_with_more_responses_count_more() -> None:
    """Check the three resamples of two prompts: 0/2, 4/5 and 8/8."""
    sums, counts = [0.0, 4.0], [1, 4]
    low, high = bootstrap_interval(sums, counts, 0.9999)
    assert (low, high) == (0.0, 1.0)
    middle = bootstrap_interval(sums, counts, 0.01)
    assert middle == (pytest.approx(0.8), pytest.approx(0.8))


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=20), st.floats(0.01, 0.99))
def test_intervals_are_reproducible_and_within_the_values(values: list[float], confidence: float) -> None:
    low, high = bootstrap_interval(values, [1] * len(values), confidence)
    assert (low, high) == bootstrap_interval(values, [1] * len(values), confidence)
    assert min(values) - 1e-9 <= low <= high <= max(values) + 1e-9
    if len(values) == 1:
        assert low == high == pytest.approx(fmean(values))
