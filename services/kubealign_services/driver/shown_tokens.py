"""What is kept of a long response: its beginning and its end. Pure."""

from collections.abc import Mapping, Sequence

#: Tokens of a response that are shown: with six numbers each about 40 KB.
HEAD, TAIL = 384, 128
#: Characters of a prompt or a response: a whole response is shown as text where its tokens are cut.
MOST_CHARACTERS = 32_768
_DIGITS = 4


def shown_text(text: str) -> str:
    """The text, or its two halves around a mark that says how much is left out."""
    if len(text) <= MOST_CHARACTERS:
        return text
    half = MOST_CHARACTERS // 2
    return f"{text[:half]}[... {len(text) - 2 * half} characters left out ...]{text[-half:]}"


def shown_tokens(
    pieces: Sequence[str], values: Mapping[str, Sequence[float]]
) -> tuple[list[str], dict[str, list[float | None]]]:
    """The pieces and, by name, a number for each, to four digits. Of more than HEAD + TAIL the first and the
    last are kept; a mark stands for the rest, and has no numbers."""
    left_out = len(pieces) - HEAD - TAIL
    rounded: dict[str, list[float | None]] = {
        name: [float(f"{value:.{_DIGITS}g}") for value in column] for name, column in values.items()
    }
    if left_out <= 0:
        return list(pieces), rounded
    mark = f"[... {left_out} tokens left out ...]"
    return (
        [*pieces[:HEAD], mark, *pieces[-TAIL:]],
        {name: [*column[:HEAD], None, *column[-TAIL:]] for name, column in rounded.items()},
    )
