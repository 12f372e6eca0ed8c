"""Text templates with placeholders: {name} is replaced by a value, {{ and }} are literal braces."""

import re
from collections.abc import Callable

_PART = re.compile(r"\{\{|\}\}|\{([^{}]+)\}|[{}]")


def fill_placeholders(template: str, value: Callable[[str], str]) -> str:
    """Replace each placeholder by `value(name)`. Raises ValueError for an unmatched brace."""

    def put(match: re.Match[str]) -> str:
        part, name = match.group(), match.group(1)
        if name is not None:
            return value(name)
        if len(part) == 2:
            return part[0]
        raise ValueError(
            f"has a single {part} at character {match.start() + 1}: write {part * 2} for the brace itself"
        )

    return _PART.sub(put, template)


def placeholder_names(template: str) -> list[str]:
    """Return the distinct placeholder names in order. Raises ValueError as `fill_placeholders` does."""
    ordered: dict[str, None] = {}
    fill_placeholders(template, lambda name: ordered.setdefault(name) or "")
    return list(ordered)


def check_placeholders(template: str) -> str:
    """Return the template if its braces are valid. Raises ValueError as `fill_placeholders` does."""
    placeholder_names(template)
    return template
