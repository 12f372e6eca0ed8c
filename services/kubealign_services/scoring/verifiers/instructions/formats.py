"""Forms of a response: lists, highlighted text, sections, JSON, a title."""

import json
import re

from kubealign_services.scoring.verifiers.instructions.instruction import (
    InstructionVerdict,
    counted,
    quoted,
    quoted_list,
)

# An asterisk alone on its line takes the next line with it, as in the reference.
_STAR_BULLET = re.compile(r"^[^\S\n]*\*[^*].*$", re.MULTILINE)
_DASH_BULLET = re.compile(r"^[^\S\n]*-.*$", re.MULTILINE)
_SINGLE_STARS = re.compile(r"\*([^\n*]*)\*")
_DOUBLE_STARS = re.compile(r"\*\*([^\n*]*)\*\*")
_TITLE = re.compile(r"<<[^\n]+>>")
_FENCES = ("```json", "```Json", "```JSON", "```")

#: Answers of which a constrained response has one.
CONSTRAINED_ANSWERS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")


def check_bullets(response: str, num_bullets: int) -> InstructionVerdict:
    """Return whether exactly `num_bullets` lines begin with an asterisk or a hyphen."""
    count = len(_STAR_BULLET.findall(response)) + len(_DASH_BULLET.findall(response))
    return InstructionVerdict(
        count == num_bullets, f"exactly {num_bullets}; {counted(count, 'bullet point')}"
    )


def check_constrained_answer(response: str) -> InstructionVerdict:
    """Return whether one of the answers is in the response."""
    return InstructionVerdict(
        any(answer in response for answer in CONSTRAINED_ANSWERS),
        f"none of {quoted_list(CONSTRAINED_ANSWERS)}",
    )


def check_highlights(response: str, num_highlights: int) -> InstructionVerdict:
    """Return whether there are at least `num_highlights` parts of the form *text* or **text**."""
    parts = _SINGLE_STARS.findall(response) + _DOUBLE_STARS.findall(response)
    count = sum(1 for part in parts if part.strip())
    return InstructionVerdict(
        count >= num_highlights, f"at least {num_highlights}; {counted(count, 'highlighted part')}"
    )


def check_sections(response: str, section_spliter: str, num_sections: int) -> InstructionVerdict:
    """Return whether the name of a section with a number occurs at least `num_sections` times."""
    count = len(re.findall(rf"{re.escape(section_spliter)}\s?\d+", response))
    return InstructionVerdict(
        count >= num_sections,
        f"at least {num_sections}; {counted(count, 'section')} that begin with {quoted(section_spliter)} "
        "and a number",
    )


def check_json(response: str) -> InstructionVerdict:
    """Return whether the response, or the block that it consists of, is a JSON document."""
    text = response.strip()
    for fence in _FENCES:
        text = text.removeprefix(fence)
    try:
        json.loads(text.removesuffix(_FENCES[-1]).strip())
    except (ValueError, RecursionError) as error:
        return InstructionVerdict(False, f"no JSON document: {error}")
    return InstructionVerdict(True, "a JSON document")


def check_title(response: str) -> InstructionVerdict:
    """Return whether there is a title of the form <<title>> on one line."""
    titles = (title.lstrip("<").rstrip(">").strip() for title in _TITLE.findall(response))
    return InstructionVerdict(any(titles), "no <<title>>")
