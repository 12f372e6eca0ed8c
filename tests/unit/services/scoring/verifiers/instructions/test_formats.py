"""Forms of a response, by hand-worked cases."""

import pytest

from support.instruction_checks import follows, reading


@pytest.mark.parametrize(
    ("response", "bullets"),
    [
        ("* one\n* two", 2),
        ("- one\n  - two\n\n\n\t* three", 3),
        ("*one*", 1),
        ("** one", 0),
        ("1. one", 0),
        ("one - two", 0),
        ("---", 1),
        ("***", 0),
        # The asterisk alone takes the next line with it.
        ("*\n* two", 1),
        ("*", 0),
    ],
)
def test_bullets(response: str, bullets: int) -> None:
    for number in range(5):
        followed = follows("detectable_format:number_bullet_lists", response, num_bullets=number)
        assert followed is (number == bullets)


@pytest.mark.timeout(60)
def test_many_blank_lines_cost_no_quadratic_search() -> None:
    assert follows("detectable_format:number_bullet_lists", "a" + "\n" * 200_000 + "- b", num_bullets=1)


@pytest.mark.parametrize(
    ("response", "followed"),
    [
        ("My answer is yes.", True),
        ("I think: My answer is maybe. Good bye.", True),
        ("My answer is no", False),
        ("my answer is yes.", False),
    ],
)
def test_constrained_answer(response: str, followed: bool) -> None:
    assert follows("detectable_format:constrained_response", response) is followed


@pytest.mark.parametrize(
    ("response", "highlights"),
    [
        ("*one* and *two*", 2),
        ("**one** and *two*", 2),
        ("**one**", 1),
        ("*one*two*", 1),
        ("* one\n* two", 0),
        ("* * and ****", 0),
        ("_one_", 0),
    ],
)
def test_highlights(response: str, highlights: int) -> None:
    for number in range(4):
        followed = follows("detectable_format:number_highlighted_sections", response, num_highlights=number)
        assert followed is (highlights >= number)


@pytest.mark.parametrize(
    ("response", "sections"),
    [
        ("Section 1\na\nSection 2\nb", 2),
        ("Section1 and Section\n2", 2),
        ("SECTION 1", 0),
        ("Section one", 0),
        ("Section  1", 0),
        ("Subsection 1, Section 12", 1),
    ],
)
def test_sections(response: str, sections: int) -> None:
    for number in range(4):
        parameters = {"section_spliter": " Section ", "num_sections": number}
        followed = follows("detectable_format:multiple_sections", response, **parameters)
        assert followed is (sections >= number)


def test_the_name_of_a_section_is_no_regular_expression() -> None:
    parameters = {"section_spliter": "Part (a)", "num_sections": 1}
    assert follows("detectable_format:multiple_sections", "Part (a) 1", **parameters)
    assert not follows("detectable_format:multiple_sections", "Part a 1", **parameters)


@pytest.mark.parametrize(
    ("response", "followed"),
    [
        ('{"a": [1, 2]}', True),
        ('```json\n{"a": 1}\n```', True),
        ('```JSON {"a": 1}```', True),
        ("```\n[1]\n```\n", True),
        ("1", True),
        ('Here: {"a": 1}', False),
        ('```json\n{"a": 1}\n``` Good bye', False),
        ("{'a': 1}", False),
        ("[" * 100_000, False),
    ],
    ids=range(9),
)
def test_json(response: str, followed: bool) -> None:
    assert follows("detectable_format:json_format", response) is followed


@pytest.mark.parametrize(
    ("response", "followed"),
    [
        ("<<Poem of joy>>\nOnce", True),
        ("Once: << a >>", True),
        ("<<>>", False),
        ("<< >>", False),
        ("<<a\nb>>", False),
        ("<Poem>", False),
        ("<<>> and <<a>>", True),
    ],
)
def test_title(response: str, followed: bool) -> None:
    assert follows("detectable_format:title", response) is followed


def test_explanations() -> None:
    assert (
        reading("detectable_format:number_bullet_lists", "- a", num_bullets=2) == "exactly 2; 1 bullet point"
    )
    assert (
        reading("detectable_format:constrained_response", "Yes")
        == "none of 'My answer is yes.', 'My answer is no.', 'My answer is maybe.'"
    )
    assert (
        reading("detectable_format:number_highlighted_sections", "a", num_highlights=1)
        == "at least 1; 0 highlighted parts"
    )
    assert (
        reading("detectable_format:multiple_sections", "Day 1", section_spliter="Day", num_sections=2)
        == "at least 2; 1 section that begin with 'Day' and a number"
    )
    assert reading("detectable_format:json_format", "{").startswith("no JSON document: Expecting property")
    assert reading("detectable_format:title", "a") == "no <<title>>"
