"""Fenced code blocks of Markdown in responses."""

import re

_FENCED_BLOCK = re.compile(r"^```[^\s`]*[ \t]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)


def last_fenced_block(text: str) -> str | None:
    """Return the content of the last complete block; None without one."""
    blocks: list[str] = _FENCED_BLOCK.findall(text)
    return blocks[-1] if blocks else None
