"""Texts for people: of a limited length, and of characters that every message can hold. Pure."""

_ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"


def shorten(text: str, most: int) -> str:
    """Return the text, or its beginning and an ellipsis where it has more than `most` characters."""
    return text if len(text) <= most else text[: most - 1] + _ELLIPSIS


def escape_surrogates(text: str) -> str:
    """Return the text with escapes in place of halves of surrogate pairs, which UTF-8 cannot state."""
    return text.encode(errors="backslashreplace").decode()
