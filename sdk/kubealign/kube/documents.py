"""Parses what the API server answers, whatever tenants have written into its objects.

The API server admits objects that are nested 10,000 levels deep; Python's parser ends at fewer than 1,000.
An object that exceeds the limit is returned as an `UnreadableObject` without its deepest parts, so that a
list or a watch goes on.
"""

import re
import secrets
from collections.abc import Iterable
from typing import Any

from kubealign.bounded_json import BoundedJsonError, parse_bounded_json
from kubealign.spec.paths import DocumentPath, format_path

Json = dict[str, Any]

#: Levels of arrays and objects in one object, the object itself included.
MAX_DEPTH = 100
#: Largest response.
MAX_RESPONSE_BYTES = 256 << 20
#: Largest event of a watch, and largest page of a list of all objects. The API server accepts objects of at
#: most 3 MiB. Parsed, a document may take 25 times its size.
MAX_PAGE_BYTES = 4 << 20
#: Levels around the objects of a list, and around the object of a watch event.
_LIST_LEVELS, _EVENT_LEVELS = 2, 1
#: Replaces a part that is nested too deeply until its object is found. No tenant can guess it.
_MARKER = secrets.token_hex(16)
_PLACEHOLDER = "(nested too deeply)"
# Everything up to the next bracket. Possessive: a long string takes no memory for backtracking.
_NEXT_BRACKET = re.compile(
    r"""(?:[^"\[\]{}]++ | "[^"\\]*+(?:\\.[^"\\]*+)*+" )*+ [\[\]{}]""", re.DOTALL | re.VERBOSE
)
_MAX_NAMED_LEVELS, _MAX_NAME_CHARS = 6, 63


class UnreadableObject(Json):
    """An object of which parts are missing, because they are nested too deeply.

    `reason` names the field and the limit.
    """

    def __init__(self, item: Json, reason: str) -> None:
        super().__init__(item)
        self.reason = reason


def parse_object(body: bytes) -> Json:
    """Parse one object. Raises BoundedJsonError when the body is not a JSON object."""
    document, was_cut = _parse(body, MAX_DEPTH)
    return _checked(document) if was_cut else document


def parse_list(body: bytes) -> Json:
    """Parse a page of a list. Raises BoundedJsonError when the body is not a JSON object."""
    page, was_cut = _parse(body, MAX_DEPTH + _LIST_LEVELS)
    items = page.get("items")
    if was_cut and isinstance(items, list):
        page["items"] = [_checked(item) if isinstance(item, dict) else item for item in items]
    return page


def parse_event(line: bytes) -> Json:
    """Parse an event of a watch. Raises BoundedJsonError when the line is not a JSON object."""
    event, was_cut = _parse(line, MAX_DEPTH + _EVENT_LEVELS)
    item = event.get("object")
    if was_cut and isinstance(item, dict):
        event["object"] = _checked(item)
    return event


def _parse(body: bytes, max_depth: int) -> tuple[Json, bool]:
    """Return the document, and True when parts of it were cut."""
    try:
        document, was_cut = parse_bounded_json(body, MAX_RESPONSE_BYTES, max_depth), False
    except BoundedJsonError:
        text = body.decode(errors="replace")
        readable = _cut_deep_parts(text, max_depth)
        if len(readable) == len(text):
            raise
        document, was_cut = parse_bounded_json(readable, MAX_RESPONSE_BYTES, max_depth), True
    if not isinstance(document, dict):
        raise BoundedJsonError("the document is not a JSON object")
    return document, was_cut


def _cut_deep_parts(text: str, max_depth: int) -> str:
    """Replace the parts of a JSON document that are nested more than `max_depth` levels deep by a marker."""
    pieces: list[str] = []
    start = position = depth = 0
    # Not finditer: it would search an invalid document from each of its characters.
    while (match := _NEXT_BRACKET.match(text, position)) is not None:
        position = match.end()
        if text[position - 1] in "[{":
            depth += 1
            if depth == max_depth + 1:
                pieces += (text[start : position - 1], f'"{_MARKER}"')
        else:
            if depth == max_depth + 1:
                start = position
            depth -= 1
    return "".join((*pieces, text[start:]))


def _checked(item: Json) -> Json:
    """Return the object, as an UnreadableObject if it has markers, which are replaced."""
    metadata = item.get("metadata")
    if isinstance(metadata, dict):
        # Nested as deep as the object, written by the API server, and of no use here.
        metadata.pop("managedFields", None)
    first: DocumentPath | None = None
    # The path of a container is a chain to its parents: a copy for each one would be quadratic.
    containers: list[tuple[Any, _Trail | None]] = [(item, None)]
    while containers:
        container, trail = containers.pop()
        entries: Iterable[tuple[str | int, Any]] = (
            container.items() if isinstance(container, dict) else enumerate(container)
        )
        for name, value in list(entries):
            if value == _MARKER:
                container[name] = _PLACEHOLDER
                first = first or _path((name, trail))
            elif isinstance(value, dict | list):
                containers.append((value, (name, trail)))
    return item if first is None else UnreadableObject(item, _reason(first))


_Trail = tuple[str | int, Any]


def _path(trail: _Trail | None) -> DocumentPath:
    names: list[str | int] = []
    while trail is not None:
        name, trail = trail
        names.append(name)
    return tuple(reversed(names))


def _reason(path: DocumentPath) -> str:
    named = [name if isinstance(name, int) else name[:_MAX_NAME_CHARS] for name in path[:_MAX_NAMED_LEVELS]]
    return f"{format_path(named)} is nested too deeply: at most {MAX_DEPTH} levels are allowed in a job"
