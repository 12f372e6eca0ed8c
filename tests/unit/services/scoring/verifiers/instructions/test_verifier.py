"""Rewards, metrics and explanations of rows of instructions; strict and loose."""

from typing import Any

import pytest

from kubealign.spec.sections.verifiers import Verifier as VerifierSpec
from kubealign_services.scoring.functions.results import MAX_EXPLANATION, RewardResult
from kubealign_services.scoring.verifiers.factory import make_verifier
from kubealign_services.scoring.verifiers.instructions.verifier import loose_variants
from support.instruction_checks import check_instruction

ROW = {
    "instruction_id_list": [
        "punctuation:no_comma",
        "length_constraints:number_words",
        "startend:quotation",
        "keywords:existence",
    ],
    "kwargs": [{}, {"num_words": 4, "relation": "at least"}, {}, {"keywords": ["cat"]}],
}


def score(response: str, row: dict[str, Any], **spec: Any) -> RewardResult:
    return make_verifier(VerifierSpec.model_validate({"instructions": spec})).score(response, row)


@pytest.mark.parametrize(
    ("response", "followed", "explanation"),
    [
        ('"The cat sat there."', 4, ""),
        ('"The cat sat, there."', 3, "not followed: punctuation:no_comma (1 comma)"),
        (
            "The dog, sat.",
            0,
            "not followed: punctuation:no_comma (1 comma), length_constraints:number_words (at least 4; "
            "3 words), startend:quotation (no double quotation marks around the response), "
            "keywords:existence (missing: 'cat')",
        ),
    ],
)
def test_all_or_a_share(response: str, followed: int, explanation: str) -> None:
    metrics = {"instructions.followed": followed, "instructions.total": 4}
    assert score(response, ROW) == RewardResult(float(followed == 4), metrics, explanation)
    assert score(response, ROW, partial=True) == RewardResult(followed / 4, metrics, explanation)


def test_columns_by_name() -> None:
    row = {"ids": ["punctuation:no_comma"], "arguments": [{}], "instruction_id_list": None, "kwargs": None}
    assert score("a, b", row, idsColumn="ids", kwargsColumn="arguments").reward == 0
    assert score("a, b", row) == RewardResult(None)


@pytest.mark.parametrize("response", ["", " \n\t"])
def test_a_blank_response_follows_nothing(response: str) -> None:
    for criterion in ("Strict", "Loose"):
        result = check_instruction("punctuation:no_comma", response, {}, criterion)
        assert result.reward == 0
        assert result.explanation == "not followed: punctuation:no_comma (the response is blank)"


def test_a_long_explanation_is_cut() -> None:
    keywords = [f"{number:050}" for number in range(60)]
    result = check_instruction("keywords:existence", "a", {"keywords": keywords})
    assert len(result.explanation) == MAX_EXPLANATION


def test_eight_variants() -> None:
    whole, first, last, both = "a\n\n*b*\n \nc", "*b*\n \nc", "a\n\n*b*", "*b*"
    without_asterisks = ["a\n\nb\n \nc", "b\n \nc", "a\n\nb", "b"]
    assert loose_variants(whole) == [whole, first, last, both, *without_asterisks]


def test_equal_variants_are_left_out() -> None:
    assert loose_variants("*a*\nb\nc") == ["*a*\nb\nc", "b\nc", "*a*\nb", "b", "a\nb\nc", "a\nb"]
    assert loose_variants("*a*") == ["*a*", "", "a"]


@pytest.mark.parametrize(
    ("instruction", "parameters", "response"),
    [
        ("startend:quotation", {}, 'Here it is:\n"one"'),
        ("startend:quotation", {}, '"one"\nIs there anything else?'),
        ("startend:quotation", {}, 'Here it is:\n\n"one"\n\nGood bye'),
        ("startend:quotation", {}, '**"one"**'),
        ("startend:quotation", {}, 'Here it is:\n**"one"**\nGood bye'),
        ("startend:end_checker", {"end_phrase": "The end."}, "**The end.**"),
        ("detectable_format:json_format", {}, "Sure:\n{}"),
        ("punctuation:no_comma", {}, "Sure, here:\nno comma"),
    ],
)
def test_loose_allows_more_than_strict(instruction: str, parameters: dict[str, Any], response: str) -> None:
    assert check_instruction(instruction, response, parameters).reward == 0
    result = check_instruction(instruction, response, parameters, "Loose")
    assert (result.reward, result.explanation) == (1, "")


def test_loose_does_not_allow_all() -> None:
    strict, loose = (
        check_instruction("startend:quotation", 'One\nTwo\n"one"', {}, criterion)
        for criterion in ("Strict", "Loose")
    )
    assert loose.reward == 0
    assert loose.explanation == strict.explanation
    # Without its only line the response is blank.
    assert check_instruction("punctuation:no_comma", "a, b", {}, "Loose").reward == 0
    # The response as it is counts too.
    assert check_instruction("detectable_format:title", "<<a>>", {}, "Loose").reward == 1


def test_each_instruction_may_be_followed_by_another_variant() -> None:
    row = {"instruction_id_list": ["startend:quotation", "detectable_format:title"], "kwargs": [{}, {}]}
    assert score('<<A>>\n"one"', row, criterion="Loose").reward == 1
    assert score('<<A>>\n"one"', row).reward == 0
