"""Arithmetic of comparisons, and the choice of principles."""

import math
from collections import Counter

import pytest

from kubealign_services.roles.driver.data_generation.comparison import first_share, preference_probability
from kubealign_services.roles.driver.data_generation.critique_revision import sample_principle


def test_the_share_of_an_answer_is_that_of_both_answers_probability() -> None:
    # 0.3 / (0.3 + 0.1) = 0.75
    assert first_share(math.log(0.3), math.log(0.1)) == pytest.approx(0.75, abs=1e-12)
    assert first_share(-5.0, -5.0) == 0.5
    assert first_share(-1000.0, 0.0) == pytest.approx(0.0, abs=1e-12)
    assert first_share(0.0, -1000.0) == 1.0


def test_both_orders_count_alike() -> None:
    # In first position the response wins with 0.9; in second, its opponent wins with 0.3: (0.9 + 0.7) / 2.
    assert preference_probability(0.9, 0.3) == pytest.approx(0.8)
    assert preference_probability(0.3, 0.9) == pytest.approx(1 - 0.8)


def test_a_policy_that_always_names_the_first_has_no_preference() -> None:
    assert preference_probability(0.97, 0.97) == 0.5


def test_principles_are_drawn_evenly_and_repeatably() -> None:
    names = [f"{row}/{pair}" for row in range(100) for pair in range(10)]
    first = [sample_principle(["a", "b", "c", "d"], 1, name) for name in names]
    assert first == [sample_principle(["a", "b", "c", "d"], 1, name) for name in names]
    assert first != [sample_principle(["a", "b", "c", "d"], 2, name) for name in names]
    # 1000 draws of one in four: 250, with a deviation of 14.
    assert all(180 < count < 320 for count in Counter(first).values())
