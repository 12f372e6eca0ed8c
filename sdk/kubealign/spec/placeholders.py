"""Text with names in braces: {name} stands for a value, {{ and }} for the braces themselves."""

import re
from collections.abc import Callable

_PART = re.compile(r"\{\{|\}\}|\{([^{}]+)\}|[{}]")


def fill(template: str, value: Callable[[str], str]) -> str:
    """The text with what `value` says of each name. Raises ValueError for a brace that stands alone."""

    def put(found: re.Match[str]) -> str:
        part, name = found.group(), found.group(1)
        if name is not None:
            return value(name)
        if len(part) == 2:
            return part[0]
        raise ValueError(
            f"has a single {part} at character {found.start() + 1}: write {part * 2} for the brace itself"
        )

    return _PART.sub(put, template)


def names(template: str) -> list[str]:
    """The names in a text, each once, in their order. Raises ValueError as `fill` does."""
    found: dict[str, None] = {}
    fill(template, lambda name: found.setdefault(name) or "")
    return list(found)


def well_formed(template: str) -> str:
    """The text itself. Raises ValueError as `fill` does."""
    names(template)
    return template
