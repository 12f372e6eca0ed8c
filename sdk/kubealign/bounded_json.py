"""JSON reader for documents of untrusted writers, bounded in size and in nesting depth."""

import json
import math
import re
from itertools import accumulate
from typing import Any, NoReturn

#: Longer integers do not fit a float64, so that every accepted number can be converted to float.
_MAX_INTEGER_DIGITS = 300
_STRING = re.compile(r'"[^"]*"?')
_NOT_A_BRACKET = re.compile(r"[^\[\]{}]+")
_LEVEL = {"[": 1, "{": 1, "]": -1, "}": -1}
# An escape: a surrogate pair, a lone surrogate, or any other one.
_ESCAPE = re.compile(
    r"\\(?:(?P<pair>u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|(?P<lone>u[dD][89a-fA-F][0-9a-fA-F]{2})"
    r"|.)",
    re.DOTALL,
)


class BoundedJsonError(ValueError):
    """The document is not JSON, or exceeds a bound."""


def parse_bounded_json(data: bytes | str, max_bytes: int, max_depth: int) -> Any:
    """Parse a JSON document (RFC 8259) of an untrusted writer.

    The time is linear in the size of the document, and the recursion at most `max_depth` levels: the
    nesting is measured before the document is parsed. As in Go's encoding/json, a lone surrogate becomes
    U+FFFD, so that each returned string can be encoded as UTF-8. Each returned number can be converted to a
    finite float.

    Args:
        data: The document, encoded as UTF-8 if it is bytes.
        max_bytes: The largest size, in bytes of UTF-8.
        max_depth: The largest nesting of arrays and objects: 0 allows only a string, number or literal.

    Raises:
        BoundedJsonError: The document is larger or deeper, not UTF-8, not JSON, or has a number outside the
            range of float64 (NaN and Infinity, which JSON does not have, included). No other exception is
            raised.
    """
    text = _decode(data, max_bytes)
    depth = _nesting_depth(text)
    if depth > max_depth:
        raise BoundedJsonError(f"nested {depth} levels deep, at most {max_depth} are allowed")
    if "\\ud" in text or "\\uD" in text:
        text = _ESCAPE.sub(_replace_lone_surrogate, text)
    try:
        return json.loads(
            text, parse_constant=_refuse_constant, parse_float=_parse_float, parse_int=_parse_int
        )
    except BoundedJsonError:
        raise
    except (ValueError, RecursionError) as error:
        # RecursionError: the caller's own stack left less room than the allowed depth.
        raise BoundedJsonError(f"not valid JSON: {error}") from error


def _decode(data: bytes | str, max_bytes: int) -> str:
    """Return the document as text that can be encoded as UTF-8."""
    if len(data) > max_bytes:
        raise BoundedJsonError(f"at least {len(data)} bytes long, at most {max_bytes} are allowed")
    try:
        encoded = data.encode() if isinstance(data, str) else data
        text = encoded.decode()
    except UnicodeError as error:
        raise BoundedJsonError(f"not UTF-8: {error}") from error
    if len(encoded) > max_bytes:
        raise BoundedJsonError(f"{len(encoded)} bytes long, at most {max_bytes} are allowed")
    return text


def _nesting_depth(text: str) -> int:
    """Return the depth of arrays and objects; exact for valid JSON, and never too small for what the parser
    reads of invalid JSON.
    """
    unescaped = text.replace("\\\\", "").replace('\\"', "")
    brackets = _NOT_A_BRACKET.sub("", _STRING.sub("", unescaped))
    return max(accumulate(map(_LEVEL.__getitem__, brackets)), default=0)


def _replace_lone_surrogate(escape: re.Match[str]) -> str:
    return "\\ufffd" if escape["lone"] else escape[0]


def _refuse_constant(name: str) -> NoReturn:
    raise BoundedJsonError(f"{name} is not a JSON number")


def _parse_float(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise BoundedJsonError(f"the number {digits[:40]} is outside the range of float64")
    return number


def _parse_int(digits: str) -> int:
    if len(digits) > _MAX_INTEGER_DIGITS:
        raise BoundedJsonError(f"an integer of more than {_MAX_INTEGER_DIGITS} digits: {digits[:40]}...")
    return int(digits)
