"""Content of a response, its beginning and its end, by hand-worked cases."""

import pytest

from support.instruction_checks import follows, reading


@pytest.mark.parametrize(
    ("response", "placeholders"),
    [
        ("[name]", 1),
        ("Dear [name] of [city]", 2),
        ("[]", 1),
        ("[a [b]", 1),
        ("[a\nb]", 0),
        ("(name)", 0),
    ],
)
def test_placeholders(response: str, placeholders: int) -> None:
    for number in range(4):
        followed = follows("detectable_content:number_placeholders", response, num_placeholders=number)
        assert followed is (placeholders >= number)


@pytest.mark.parametrize(
    ("marker", "response", "followed"),
    [
        ("P.S.", "Bye.\nP.S. I am here.", True),
        ("P.S.", "Bye. p. s. I am here.", True),
        ("P.S.", "P.S I am here.", False),
        ("P.S.", "P.P.S. I am here.", True),
        ("P.P.S", "P.P.S I am here.", True),
        ("P.P.S", "P. P. S. I am here.", True),
        ("P.P.S", "P.S. I am here.", False),
        ("Note:", "And a note: one.", True),
        ("Note:", "And a notes.", False),
    ],
)
def test_postscript(marker: str, response: str, followed: bool) -> None:
    assert follows("detectable_content:postscript", response, postscript_marker=marker) is followed


@pytest.mark.parametrize(
    ("response", "followed"),
    [
        ("one\n******\ntwo", True),
        ("one****** two ******", True),
        ("******one******two", True),
        ("one\n******\n one ", False),
        ("one", False),
        ("one******two******three", False),
        ("one************two", False),
        ("one***two", False),
    ],
)
def test_two_responses(response: str, followed: bool) -> None:
    assert follows("combination:two_responses", response) is followed


@pytest.mark.parametrize(
    ("response", "followed"),
    [
        ("Write a poem. Here it is.", True),
        ("\n WRITE A POEM.\n", True),
        ("Sure: Write a poem.", False),
        ("Write a  poem.", False),
        ("Write", False),
    ],
)
def test_repeated_prompt(response: str, followed: bool) -> None:
    assert follows("combination:repeat_prompt", response, prompt_to_repeat="Write a poem. ") is followed


@pytest.mark.parametrize(
    ("response", "followed"),
    [
        ("Well. That is all you need!", True),
        ('"THAT IS ALL YOU NEED!"\n', True),
        ("That is all you need! Bye", False),
        ("All you need!", False),
    ],
)
def test_end(response: str, followed: bool) -> None:
    assert follows("startend:end_checker", response, end_phrase="That is all you need!") is followed


@pytest.mark.parametrize(
    ("response", "followed"),
    [('"one"', True), (' "one" \n', True), ('""', True), ('"', False), ('"one', False), ("“one”", False)],
)
def test_quotation(response: str, followed: bool) -> None:
    assert follows("startend:quotation", response) is followed


@pytest.mark.parametrize(
    ("response", "followed"), [("one two", True), ("one, two", False), ("1,000", False), ("一、二，三", True)]
)
def test_commas(response: str, followed: bool) -> None:
    assert follows("punctuation:no_comma", response) is followed


def test_explanations() -> None:
    assert reading("punctuation:no_comma", "a, b, c") == "2 commas"
    assert (
        reading("detectable_content:number_placeholders", "[a]", num_placeholders=3)
        == "at least 3; 1 placeholder"
    )
    assert reading("detectable_content:postscript", "a", postscript_marker="P.S.") == "no 'P.S.'"
    assert reading("combination:two_responses", "a") == "two; 1 response"
    assert reading("combination:two_responses", "a******a") == "both responses are the same"
    assert reading("combination:two_responses", "a************b") == "nothing between two dividers"
    assert reading("combination:repeat_prompt", " Sure. ", prompt_to_repeat="Go") == "begins with 'Sure.'"
    assert reading("startend:end_checker", "one two", end_phrase="End") == "'End'; ends with 'two'"
    assert reading("startend:quotation", "a") == "no double quotation marks around the response"
