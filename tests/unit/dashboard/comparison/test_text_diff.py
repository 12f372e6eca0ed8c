"""Differences of texts, word by word."""

import random

import pytest

from kubealign_dashboard.comparison.text_diff import MAX_UNITS, DiffPart, TextDiff, compare_texts


def texts(diff: TextDiff) -> tuple[str, str]:
    return "".join(part.text for part in diff.left), "".join(part.text for part in diff.right)


def test_changed_words_are_marked_on_their_side() -> None:
    diff = compare_texts("The answer is 42, so blue.", "The answer is 43, so very blue.")
    assert [part.text for part in diff.left if part.changed] == ["42"]
    assert [part.text for part in diff.right if part.changed] == ["43", " very"]
    assert diff.left[0] == diff.right[0] == DiffPart("The answer is ", False)
    assert diff.unit == "word"


def test_equal_and_empty_texts() -> None:
    assert compare_texts("same", "same") == TextDiff(
        [DiffPart("same", False)], [DiffPart("same", False)], "word"
    )
    assert compare_texts("", "") == TextDiff([], [], "word")
    assert compare_texts("", "new") == TextDiff([], [DiffPart("new", True)], "word")


@pytest.mark.parametrize("seed", range(20))
def test_the_parts_of_a_side_are_its_text(seed: int) -> None:
    chance = random.Random(seed)
    pieces = ["a", "b", "\n", "  ", "é", "<b>", "1.5", "\u2028", "🙂", "\t", "word"]
    left, right = ("".join(chance.choices(pieces, k=chance.randint(0, 80))) for _ in range(2))
    diff = compare_texts(left, right)
    assert texts(diff) == (left, right)
    unchanged = ["".join(part.text for part in side if not part.changed) for side in (diff.left, diff.right)]
    assert unchanged[0] == unchanged[1]


def test_long_texts_are_compared_by_lines_and_longer_ones_not_at_all() -> None:
    line = "a line of seven words, more or less\n"
    lines = [f"{number} {line}" for number in range(MAX_UNITS // 2)]
    left, right = "".join(lines), "".join([*lines[:10], "a new one\n", *lines[10:]])
    diff = compare_texts(left, right)
    assert diff.unit == "line"
    assert [part.text for part in diff.right if part.changed] == ["a new one\n"]
    assert texts(diff) == (left, right)
    left, right = "x\n" * (MAX_UNITS + 1), "y\n" * 3
    assert compare_texts(left, right) == TextDiff([DiffPart(left, True)], [DiffPart(right, True)], "text")
