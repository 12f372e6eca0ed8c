"""Lengths in sentences, paragraphs and words, by hand-worked cases."""

from typing import Any

import pytest

from support.instruction_checks import follows, reading


@pytest.mark.parametrize(
    ("response", "sentences"),
    [
        ("One sentence", 1),
        ("One. Two! Three?", 3),
        ("Dr. Smith went to the U.S. embassy at 3.15 p.m. on Monday. He was late.", 2),
        ("“One.” Two.", 2),
        ("Wow!!!", 1),
        ("One\n\nstill one", 1),
        ("One.\nTwo.", 2),
    ],
)
def test_number_of_sentences(response: str, sentences: int) -> None:
    for number in range(1, 5):
        for relation, followed in (("at least", sentences >= number), ("less than", sentences < number)):
            parameters: dict[str, Any] = {"num_sentences": number, "relation": relation}
            assert follows("length_constraints:number_sentences", response, **parameters) is followed


@pytest.mark.parametrize(
    ("response", "words"),
    [
        ("one two", 2),
        ("don't", 2),
        ("well-known", 2),
        ("snake_case", 1),
        ("3.5 €", 2),
        ("日本 語", 2),
        ("...", 0),
    ],
)
def test_number_of_words(response: str, words: int) -> None:
    for number in range(4):
        for relation, followed in (("at least", words >= number), ("less than", words < number)):
            parameters: dict[str, Any] = {"num_words": number, "relation": relation}
            assert follows("length_constraints:number_words", response, **parameters) is followed


@pytest.mark.parametrize(
    ("response", "paragraphs"),
    [
        ("one", 1),
        ("one\n***\ntwo", 2),
        ("one *** two***three", 3),
        ("***\none\n***\ntwo\n***", 2),
        ("one\n***\n\n***\ntwo", None),
        ("one\n\ntwo", 1),
        ("one\n****\ntwo", 2),
        ("one ****** two", None),
        ("***", 0),
    ],
)
def test_number_of_paragraphs(response: str, paragraphs: int | None) -> None:
    for number in range(4):
        followed = follows("length_constraints:number_paragraphs", response, num_paragraphs=number)
        assert followed is (number == paragraphs)


@pytest.mark.parametrize(
    ("response", "paragraphs", "position", "word", "followed"),
    [
        ("One is here.\n\nTwo is there.", 2, 2, "two", True),
        ("One is here.\n\nTwo is there.", 2, 1, "ONE", True),
        ("One is here.\n\nTwo is there.", 2, 2, "there", False),
        ("One is here.\n\nTwo is there.", 3, 2, "two", False),
        ("One\nTwo", 1, 1, "one", True),
        ('"One", he said.', 1, 1, "one", True),
        ("'One' he said.", 1, 1, "one", True),
        ("One's own.", 1, 1, "one", True),
        ("One: this.", 1, 1, "one", False),
        ("...", 1, 1, "one", False),
        # An empty paragraph is none of the two, but the second in order.
        ("One\n\n\n\nTwo", 2, 2, "two", False),
        ("One\n\nTwo\n\n", 2, 2, "two", True),
    ],
)
def test_first_word_of_a_paragraph(
    response: str, paragraphs: int, position: int, word: str, followed: bool
) -> None:
    parameters = {"num_paragraphs": paragraphs, "nth_paragraph": position, "first_word": word}
    assert follows("length_constraints:nth_paragraph_first_word", response, **parameters) is followed


def test_explanations() -> None:
    words: dict[str, Any] = {"num_words": 300, "relation": "at least"}
    assert reading("length_constraints:number_words", "two words", **words) == "at least 300; 2 words"
    sentences: dict[str, Any] = {"num_sentences": 1, "relation": "less than"}
    assert reading("length_constraints:number_sentences", "One.", **sentences) == "less than 1; 1 sentence"
    assert (
        reading("length_constraints:number_paragraphs", "a", num_paragraphs=2)
        == "exactly 2; 1 paragraph between the dividers ***"
    )
    assert (
        reading("length_constraints:number_paragraphs", "a******b", num_paragraphs=2)
        == "exactly 2; nothing between two dividers"
    )
    first: dict[str, Any] = {"num_paragraphs": 2, "nth_paragraph": 1, "first_word": "One"}
    assert (
        reading("length_constraints:nth_paragraph_first_word", "Two.", **first)
        == "exactly 2, 'One' begins number 1; 1 paragraph, 'two' begins number 1"
    )
