"""Calls as JSON objects with a name and arguments, which several formats share."""

import json
import re
from typing import Any, NoReturn

from kubealign_services.tools.parsers.contract import InvalidCall, ParsedCall, ToolCall

_SPACE = re.compile(r"\s*")


def skip_space(text: str, start: int) -> int:
    """Return the position of the first character after white space."""
    match = _SPACE.match(text, start)
    return start if match is None else match.end()


def read_json(text: str, start: int) -> tuple[Any, int]:
    """Return (value of the JSON that begins at `start`, position after it).

    Raises:
        ValueError: There is no JSON at this position, or JSON that no tool can receive: NaN, an infinity, or
            values that are nested too deeply.
    """
    try:
        return _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at character {error.pos - start + 1}") from error
    except RecursionError as error:
        raise ValueError("its values are nested too deeply") from error


def to_call(document: Any) -> ParsedCall:
    """Return the call of a JSON value: an object with a name, and with arguments or parameters."""
    if not isinstance(document, dict) or not isinstance(document.get("name"), str):
        return InvalidCall("a call must be a JSON object with name and arguments")
    arguments: Any = next((document[key] for key in ("arguments", "parameters") if key in document), {})
    if not isinstance(arguments, dict):
        return InvalidCall(f"the arguments of {document['name']} must be a JSON object")
    return ToolCall(document["name"], arguments)


def not_json(error: ValueError) -> InvalidCall:
    """Return the call whose JSON cannot be read."""
    return InvalidCall(f"the call is not JSON: {error}")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"{text} is too large a number")
    return number


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
