"""Truncation of long samples for display: keeps the beginning and the end. Pure."""

from collections.abc import Mapping, Sequence

#: Tokens of a response that are shown: about 40 KB with six numbers each.
HEAD_TOKENS, TAIL_TOKENS = 384, 128
#: Most characters of a prompt or a response. The text may be complete where the tokens are truncated.
MAX_CHARACTERS = 32_768
_SIGNIFICANT_DIGITS = 4


def truncate_text(text: str) -> str:
    """Return the text, or its two ends around a mark with the number of characters left out."""
    if len(text) <= MAX_CHARACTERS:
        return text
    half = MAX_CHARACTERS // 2
    return f"{text[:half]}[... {len(text) - 2 * half} characters left out ...]{text[-half:]}"


def truncate_tokens(
    pieces: Sequence[str], values: Mapping[str, Sequence[float]]
) -> tuple[list[str], dict[str, list[float | None]]]:
    """Return the pieces and, by name, a number for each, rounded to four digits.

    Of more than HEAD_TOKENS + TAIL_TOKENS the first and the last are kept; a mark without numbers replaces
    the rest.
    """
    left_out = len(pieces) - HEAD_TOKENS - TAIL_TOKENS
    rounded: dict[str, list[float | None]] = {
        name: [float(f"{value:.{_SIGNIFICANT_DIGITS}g}") for value in column] for name, column in values.items()
    }
    if left_out <= 0:
        return list(pieces), rounded
    mark = f"[... {left_out} tokens left out ...]"
    return (
        [*pieces[:HEAD_TOKENS], mark, *pieces[-TAIL_TOKENS:]],
        {name: [*column[:HEAD_TOKENS], None, *column[-TAIL_TOKENS:]] for name, column in rounded.items()},
    )
