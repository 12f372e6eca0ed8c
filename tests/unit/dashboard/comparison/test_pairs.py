"""Pairs of responses to the same prompts."""

import math

import pytest

from kubealign.validation_record import ValidationRecord
from kubealign_dashboard.comparison.pairs import PairedValidations, PairFilter, PairOrder, pair_responses


def records(
    *scores: float | None, prompts: str = "abcdefgh", set_name: str = "", name: str = "right"
) -> list[ValidationRecord]:
    return [
        ValidationRecord(row, prompts[row], f"{prompts[row]} {score}", {name: score}, set_name=set_name)
        for row, score in enumerate(scores)
    ]


def prompts(paired: PairedValidations, show: PairFilter, order: PairOrder) -> str:
    return "".join(pair.key.prompt for pair in paired.select("right", show, order))


@pytest.fixture
def paired() -> PairedValidations:
    return pair_responses(records(0.0, 1.0, 0.5, 0.2, None, 1.0), records(1.0, 0.8, 0.5, 0.5, 1.0, 0.0))


def test_equal_prompts_are_paired_whatever_their_rows() -> None:
    left = records(0.0, 1.0, 0.5, prompts="abc")
    right = records(0.5, 0.0, 1.0, prompts="cxa")
    paired = pair_responses(left, right)
    assert [(pair.left.response, pair.right.response) for pair in paired.pairs] == [
        ("a 0.0", "a 1.0"),
        ("c 0.5", "c 0.5"),
    ]
    assert (paired.unpaired_left, paired.unpaired_right) == (1, 1)


def test_the_responses_to_one_prompt_are_paired_in_order_and_sets_are_separate() -> None:
    left = [*records(0.1, 0.2, 0.3, prompts="aaa"), *records(0.4, prompts="a", set_name="hard")]
    right = [*records(0.5, prompts="a", set_name="hard"), *records(0.6, 0.7, prompts="aa")]
    paired = pair_responses(left, right)
    assert [(pair.left.scores["right"], pair.right.scores["right"]) for pair in paired.pairs] == [
        (0.1, 0.6),
        (0.2, 0.7),
        (0.4, 0.5),
    ]
    assert paired.set_names == ["", "hard"]
    assert [pair.key.set_name for pair in paired.of_set("hard").pairs] == ["hard"]
    assert len({pair.key.id for pair in paired.pairs}) == 3
    first = paired.pairs[0]
    assert paired.find(first.key.id) is first
    assert paired.find("none") is None
    # The same prompt has the same id in another comparison.
    assert pair_responses(right, right).find(first.key.id) is not None


@pytest.mark.parametrize(
    ("show", "shown"), [("all", "abcdef"), ("different", "abdf"), ("left", "bf"), ("right", "ad")]
)
def test_pairs_are_filtered_by_their_scores(paired: PairedValidations, show: str, shown: str) -> None:
    assert prompts(paired, PairFilter(show), PairOrder.ROW) == shown


@pytest.mark.parametrize(
    ("order", "shown"), [("row", "abcdef"), ("difference", "afdbce"), ("gain", "adcbfe"), ("loss", "fbcdae")]
)
def test_pairs_are_sorted_by_difference_with_unknown_ones_last(
    paired: PairedValidations, order: str, shown: str
) -> None:
    assert prompts(paired, PairFilter.ALL, PairOrder(order)) == shown


def test_outcomes_are_counted(paired: PairedValidations) -> None:
    counts = paired.count("right")
    assert (counts.left, counts.right, counts.equal, counts.unscored) == (2, 2, 1, 1)
    assert counts.mean_difference == pytest.approx((1.0 - 0.2 + 0.0 + 0.3 - 1.0) / 5)
    assert paired.count("other").mean_difference is None


def test_a_score_that_is_not_a_number_has_no_difference() -> None:
    paired = pair_responses(records(math.nan, math.inf), records(1.0, 1.0))
    assert [pair.difference("right") for pair in paired.pairs] == [None, None]


def test_common_scores_come_first() -> None:
    left = [ValidationRecord(0, "a", "x", {"z": 1.0, "only": 1.0})]
    right = [ValidationRecord(0, "a", "y", {"z": 0.0, "b": None})]
    assert pair_responses(left, right).scores == ["z", "b", "only"]
