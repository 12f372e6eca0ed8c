"""Instructions of rows: their ids and parameters, and errors that name them."""

import re
from typing import Any

import pytest

from kubealign_services.scoring.verifiers.contract import UnusableRow
from kubealign_services.scoring.verifiers.instructions.registry import INSTRUCTIONS
from kubealign_services.scoring.verifiers.instructions.rows import read_instructions

#: All parameters of the data set as its Parquet files have them: each row has every name.
NULLS = {name: None for instruction in INSTRUCTIONS.values() for name in instruction.parameters}


def read(ids: Any, kwargs: Any) -> list[str] | None:
    instructions = read_instructions({"ids": ids, "parameters": kwargs}, "ids", "parameters")
    return None if instructions is None else [instruction.id for instruction in instructions]


def test_all_instructions_of_the_data_set() -> None:
    assert len(INSTRUCTIONS) == 25
    assert len(NULLS) == 24


def test_absent_parameters_may_be_null() -> None:
    ids = ["punctuation:no_comma", "length_constraints:number_words", "startend:quotation"]
    words = NULLS | {"num_words": 3, "relation": "at least"}
    assert read(ids, [NULLS, words, None]) == ids
    instructions = read_instructions({"ids": tuple(ids), "kwargs": ({}, words, {})}, "ids", "kwargs")
    assert instructions is not None
    assert [instruction.check("one, two").followed for instruction in instructions] == [False, False, False]
    assert [instruction.check('"a b c"').followed for instruction in instructions] == [True, True, True]


def test_a_whole_number_may_be_a_float() -> None:
    instructions = read_instructions(
        {"ids": ["detectable_content:number_placeholders"], "kwargs": [{"num_placeholders": 2.0}]},
        "ids",
        "kwargs",
    )
    assert instructions is not None
    assert instructions[0].check("[a]").reading == "at least 2; 1 placeholder"


@pytest.mark.parametrize(("ids", "kwargs"), [(None, [{}]), (["punctuation:no_comma"], None), ([], [])])
def test_rows_without_instructions(ids: Any, kwargs: Any) -> None:
    assert read(ids, kwargs) is None


WORDS = {"num_words": 3, "relation": "at least"}


@pytest.mark.parametrize(
    ("ids", "kwargs", "message"),
    [
        ("punctuation:no_comma", [{}], "ids is 'punctuation:no_comma'; it must be a list of change_case:"),
        (["no_comma"], [{}], "ids[0] is 'no_comma'; it must be one of change_case:capital_word_frequency, "),
        (["punctuation:no_comma", 3], [{}, {}], "ids[1] is 3; it must be one of change_case:"),
        ([["punctuation:no_comma"]], [{}], "ids[0] is ['punctuation:no_comma']; it must be one of "),
        (
            ["startend:quotation"],
            {},
            "parameters is {}; it must be a list with one object for each of the 1 ",
        ),
        (["startend:quotation"], [{}, {}], "parameters is [{}, {}]; it must be a list with one object for"),
        (["startend:quotation"], ["{}"], "parameters[0] is '{}'; it must be an object with the parameters"),
        (
            ["startend:quotation"],
            [{"num_words": 3}],
            "parameters[0].num_words is 3; the parameters of startend:quotation are: none",
        ),
        (
            ["length_constraints:number_words"],
            [WORDS | {"words": 3}],
            "parameters[0].words is 3; the parameters of length_constraints:number_words are: num_words, rel",
        ),
        (
            ["startend:quotation", "length_constraints:number_words"],
            [{}, {"num_words": 3, "relation": None}],
            "parameters[1].relation is missing; length_constraints:number_words needs it: "
            "one of 'less than', 'at least'",
        ),
        (
            ["length_constraints:number_words"],
            [WORDS | {"relation": "at most"}],
            "parameters[0].relation is 'at most'; it must be one of 'less than', 'at least'",
        ),
        *(
            (
                ["length_constraints:number_words"],
                [WORDS | {"num_words": value}],
                f"parameters[0].num_words is {value!r}; it must be a whole number of 0 or more",
            )
            for value in ("3", 3.5, True, -1, float("inf"), [3])
        ),
        (
            ["startend:end_checker"],
            [{"end_phrase": " "}],
            "parameters[0].end_phrase is ' '; it must be a text that is not blank",
        ),
        *(
            (
                ["keywords:existence"],
                [{"keywords": value}],
                f"parameters[0].keywords is {value!r}; it must be a list of one or more texts",
            )
            for value in ("cat", [], ["cat", 3], ["cat", ""])
        ),
        *(
            (
                ["keywords:letter_frequency"],
                [{"letter": value, "let_frequency": 1, "let_relation": "at least"}],
                f"parameters[0].letter is {value!r}; it must be one character that is no white space",
            )
            for value in ("ab", "", " ", 3)
        ),
        (
            ["language:response_language"],
            [{"language": "English"}],
            "parameters[0].language is 'English'; it must be one of 'af', 'ar', ",
        ),
        (
            ["length_constraints:nth_paragraph_first_word"],
            [{"num_paragraphs": 2, "nth_paragraph": 3, "first_word": "a"}],
            "parameters[0].nth_paragraph is 3; it must be at most num_paragraphs, 2",
        ),
        (
            ["length_constraints:nth_paragraph_first_word"],
            [{"num_paragraphs": 2, "nth_paragraph": 0, "first_word": "a"}],
            "parameters[0].nth_paragraph is 0; it must be a whole number of 1 or more",
        ),
    ],
)
def test_an_unusable_row_is_named(ids: Any, kwargs: Any, message: str) -> None:
    with pytest.raises(UnusableRow, match=re.escape(message)):
        read(ids, kwargs)


@pytest.mark.parametrize("identifier", [name for name, each in INSTRUCTIONS.items() if each.parameters])
def test_all_parameters_are_required(identifier: str) -> None:
    with pytest.raises(UnusableRow, match=rf"\.\w+ is missing; {identifier} needs it"):
        read([identifier], [NULLS])
