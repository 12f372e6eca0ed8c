"""Languages and capital letters, by hand-worked cases."""

from typing import Any

import pytest

from kubealign_services.scoring.verifiers.instructions.language import LANGUAGES, identify_language
from support.instruction_checks import SENTENCES, follows, reading


@pytest.mark.parametrize("language", SENTENCES)
def test_language(language: str) -> None:
    for other in ("en", language, "cy"):
        followed = follows("language:response_language", SENTENCES[language], language=other)
        assert followed is (other == language)


def test_each_sentence_is_of_a_language_that_can_be_asked_for() -> None:
    assert len(LANGUAGES) == 54
    assert set(SENTENCES) < set(LANGUAGES)


def test_a_text_without_letters_follows_any_language() -> None:
    assert identify_language("1 + 2 = 3") is None
    assert follows("language:response_language", "1 + 2 = 3", language="hi")


@pytest.mark.parametrize(
    ("response", "followed"),
    [
        ("THE CAT IS NOW ON THE MAT", True),
        # The library of the reference calls these Somali.
        ("HELLO WORLD.", True),
        ("MY ANSWER IS YES.", True),
        ("The cat is now on the mat", False),
        ("DAS HAUS STEHT AM FLUSS UND DER GARTEN IST VOLLER BLUMEN", False),
        ("123", False),
    ],
)
def test_english_capitals(response: str, followed: bool) -> None:
    assert follows("change_case:english_capital", response) is followed


@pytest.mark.parametrize(
    ("response", "followed"),
    [
        ("the cat is now on the mat, isn't it?", True),
        ("the cat is now on the Mat", False),
        ("das haus steht am fluss und der garten ist voller blumen", False),
        ("123", False),
    ],
)
def test_english_lowercase(response: str, followed: bool) -> None:
    assert follows("change_case:english_lowercase", response) is followed


@pytest.mark.parametrize(
    ("response", "words"),
    [
        ("no capitals", 0),
        ("I saw NASA and the EU.", 3),
        ("**VERY** good", 1),
        ("DON'T", 2),
        ("WELL-KNOWN", 1),
        ("B2B and 100", 1),
        ("McDonald", 0),
    ],
)
def test_capital_words(response: str, words: int) -> None:
    for number in range(5):
        for relation, followed in (("at least", words >= number), ("less than", words < number)):
            parameters: dict[str, Any] = {"capital_frequency": number, "capital_relation": relation}
            assert follows("change_case:capital_word_frequency", response, **parameters) is followed


def test_explanations() -> None:
    german = SENTENCES["de"]
    assert reading("language:response_language", german, language="fr") == "fr; recognised de"
    assert reading("change_case:english_capital", german) == "not all letters are capital"
    assert reading("change_case:english_capital", german.upper()) == "en; recognised de"
    assert reading("change_case:english_lowercase", german) == "not all letters are small"
    assert reading("change_case:english_lowercase", german.lower()) == "en; recognised de"
    parameters: dict[str, Any] = {"capital_frequency": 2, "capital_relation": "at least"}
    assert (
        reading("change_case:capital_word_frequency", "A b", **parameters)
        == "at least 2; 1 word in capital letters"
    )
