"""Texts of a limited length for people. Pure."""

_ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"


def shorten(text: str, most: int) -> str:
    """Return the text, or its beginning and an ellipsis where it has more than `most` characters."""
    return text if len(text) <= most else text[: most - 1] + _ELLIPSIS
