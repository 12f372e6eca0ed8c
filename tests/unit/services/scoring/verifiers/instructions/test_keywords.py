"""Keywords and letters, by hand-worked cases."""

from typing import Any

import pytest

from support.instruction_checks import follows, reading


@pytest.mark.parametrize(
    ("response", "keywords", "followed"),
    [
        ("The cat sat on the mat.", ["cat", "mat"], True),
        ("The CAT sat.", ["cat"], True),
        ("Concatenate them.", ["cat"], True),
        ("The cat sat on the mat.", ["cat", "dog"], False),
        # A keyword is no regular expression.
        ("It costs 500 dollars.", ["5.0"], False),
        ("It costs 5.0 dollars (plus tax).", ["5.0", "(plus"], True),
    ],
)
def test_existence(response: str, keywords: list[str], followed: bool) -> None:
    assert follows("keywords:existence", response, keywords=keywords) is followed


@pytest.mark.parametrize(
    ("response", "frequency", "relation", "followed"),
    [
        ("one, One and ONE", 3, "at least", True),
        ("one and someone", 2, "at least", True),
        ("one and two", 2, "at least", False),
        ("one and two", 2, "less than", True),
        ("one and one", 2, "less than", False),
        ("two", 0, "at least", True),
    ],
)
def test_frequency(response: str, frequency: int, relation: str, followed: bool) -> None:
    for keyword in ("one", " one "):
        parameters: dict[str, Any] = {"keyword": keyword, "frequency": frequency, "relation": relation}
        assert follows("keywords:frequency", response, **parameters) is followed


@pytest.mark.parametrize(
    ("response", "words", "followed"),
    [
        ("The cat sat.", ["dog"], True),
        ("Concatenate them.", ["cat"], True),
        ("The cat-flap is open.", ["cat"], False),
        ("The CAT sat.", ["dog", "cat"], False),
        ("We use C++ here.", ["c++"], False),
        ("We use C++11 here.", ["c++"], True),
    ],
)
def test_forbidden_words(response: str, words: list[str], followed: bool) -> None:
    assert follows("keywords:forbidden_words", response, forbidden_words=words) is followed


@pytest.mark.parametrize(
    ("response", "letter", "frequency", "relation", "followed"),
    [
        ("Quick quiz", "q", 2, "at least", True),
        ("Quick quiz", "Q", 3, "at least", False),
        ("Quick quiz", "q", 2, "less than", False),
        ("Kind", "q", 1, "less than", True),
        ("#one #two", "#", 2, "at least", True),
        ("Go! Now", "!", 2, "at least", False),
    ],
)
def test_letter_frequency(response: str, letter: str, frequency: int, relation: str, followed: bool) -> None:
    parameters: dict[str, Any] = {"letter": letter, "let_frequency": frequency, "let_relation": relation}
    assert follows("keywords:letter_frequency", response, **parameters) is followed


def test_explanations() -> None:
    assert reading("keywords:existence", "a", keywords=["cat", "a", "dog"]) == "missing: 'cat', 'dog'"
    assert reading("keywords:existence", "a", keywords=["x" * 99]) == f"missing: '{'x' * 59}…'"
    assert reading("keywords:forbidden_words", "a cat", forbidden_words=["cat"]) == "contains 'cat'"
    number: dict[str, Any] = {"keyword": "cat", "frequency": 1, "relation": "less than"}
    assert reading("keywords:frequency", "cat cat", **number) == "'cat' less than 1 time; 2 times"
    letters: dict[str, Any] = {"letter": "q", "let_frequency": 3, "let_relation": "at least"}
    assert reading("keywords:letter_frequency", "quiz", **letters) == "'q' at least 3 times; 1 time"
