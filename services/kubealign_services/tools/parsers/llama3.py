"""Calls of Llama 3.1 to 3.3: a turn of one or more JSON objects, {"name": "add", "parameters": {"a": 1}},
separated by semicolons, which may begin with <|python_tag|>.
"""

from typing import Any

from kubealign_services.tools.parsers.contract import ParsedCall
from kubealign_services.tools.parsers.json_calls import not_json, read_json, skip_space, to_call

_TAG = "<|python_tag|>"


class Llama3Parser:
    """Parses JSON objects at the beginning of a turn.

    Without the tag, the turn calls a tool only if its first object has a name and parameters: an answer may
    be JSON as well.
    """

    def parse(self, text: str) -> list[ParsedCall]:
        stripped = text.strip()
        is_tagged = stripped.startswith(_TAG)
        body = stripped.removeprefix(_TAG)
        calls: list[ParsedCall] = []
        position = _next_object(body, 0)
        while position < len(body) and (body[position] == "{" or (is_tagged and not calls)):
            try:
                document, position = read_json(body, position)
            except ValueError as error:
                return [*calls, not_json(error)] if calls or is_tagged else []
            if not calls and not is_tagged and not _is_call(document):
                return []
            calls.append(to_call(document))
            position = _next_object(body, position)
        return calls


def _is_call(document: Any) -> bool:
    return (
        isinstance(document, dict) and "name" in document and not document.keys().isdisjoint(_ARGUMENT_KEYS)
    )


_ARGUMENT_KEYS = ("parameters", "arguments")


def _next_object(text: str, start: int) -> int:
    """Return the position after white space, separators and repeated tags."""
    while True:
        position = skip_space(text, start)
        if text.startswith(_TAG, position):
            start = position + len(_TAG)
        elif text.startswith(";", position):
            start = position + 1
        else:
            return position
