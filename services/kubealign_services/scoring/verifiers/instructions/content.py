"""Content that a response has to have, and its beginning and its end."""

import re

from kubealign_services.scoring.verifiers.instructions.instruction import (
    InstructionVerdict,
    counted,
    quoted,
)

_PLACEHOLDER = re.compile(r"\[[^\]\n]*\]")
#: Markers of postscripts that may have white space after their full stops, in small letters.
_POSTSCRIPTS = {"P.S.": re.compile(r"p\.\s?s\."), "P.P.S": re.compile(r"p\.\s?p\.\s?s")}
_ANSWER_DIVIDER = "******"


def check_placeholders(response: str, num_placeholders: int) -> InstructionVerdict:
    """Return whether there are at least `num_placeholders` of the form [text], each on one line."""
    count = len(_PLACEHOLDER.findall(response))
    return InstructionVerdict(
        count >= num_placeholders, f"at least {num_placeholders}; {counted(count, 'placeholder')}"
    )


def check_postscript(response: str, postscript_marker: str) -> InstructionVerdict:
    """Return whether the marker occurs anywhere, in either case."""
    text, pattern = response.lower(), _POSTSCRIPTS.get(postscript_marker)
    present = postscript_marker.lower() in text if pattern is None else bool(pattern.search(text))
    return InstructionVerdict(present, f"no {quoted(postscript_marker)}")


def check_two_responses(response: str) -> InstructionVerdict:
    """Return whether six asterisks separate two different answers; they may also be at either end."""
    parts = [part.strip() for part in response.split(_ANSWER_DIVIDER)]
    answers = [part for part in parts if part]
    if not all(parts[1:-1]):
        return InstructionVerdict(False, "nothing between two dividers")
    if len(answers) != 2:
        return InstructionVerdict(False, f"two; {counted(len(answers), 'response')}")
    return InstructionVerdict(answers[0] != answers[1], "both responses are the same")


def check_repeated_prompt(response: str, prompt_to_repeat: str) -> InstructionVerdict:
    """Return whether the response begins with the prompt, in either case."""
    return InstructionVerdict(
        response.strip().lower().startswith(prompt_to_repeat.lower()),
        f"begins with {quoted(response.strip())}",
    )


def check_end(response: str, end_phrase: str) -> InstructionVerdict:
    """Return whether the response ends with the phrase, in either case; quotation marks may follow."""
    text = response.strip().strip('"')
    return InstructionVerdict(
        text.lower().endswith(end_phrase.lower()),
        f"{quoted(end_phrase)}; ends with {quoted(text[-len(end_phrase) :])}",
    )


def check_quotation(response: str) -> InstructionVerdict:
    """Return whether double quotation marks enclose the response."""
    text = response.strip()
    return InstructionVerdict(
        len(text) > 1 and text[0] == text[-1] == '"', "no double quotation marks around the response"
    )


def check_commas(response: str) -> InstructionVerdict:
    """Return whether there is no comma."""
    return InstructionVerdict("," not in response, counted(response.count(","), "comma"))
