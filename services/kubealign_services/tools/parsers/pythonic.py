"""Calls as a Python list, [add(a=1, b=2), now()], as Llama 3.2 (1B and 3B), Llama 4, ToolACE and LFM2 write
them. The text is parsed and never evaluated.
"""

import ast
import math
import re
import warnings
from typing import Any

from kubealign_services.tools.parsers.contract import InvalidCall, ParsedCall, ToolCall

#: Start and end tokens that some models write around the list.
_TAGS = (("<|python_start|>", "<|python_end|>"), ("<|tool_call_start|>", "<|tool_call_end|>"))
#: Names that models write for constants, as in JSON.
_CONSTANTS = {"true": True, "false": False, "null": None}
#: Beginning of a list of calls, with which no other answer begins.
_BEGINNING = re.compile(r"\[\s*[A-Za-z_][\w.]*\(")
#: Most characters of a list: the time and memory of Python's parser grow with it.
_MAX_CHARACTERS = 2**16


class PythonicParser:
    """Parses a list of calls with named arguments, whose values are literals."""

    def parse(self, text: str) -> list[ParsedCall]:
        body, is_tagged = _without_tags(text)
        if not is_tagged and not _BEGINNING.match(body):
            return []
        if len(body) > _MAX_CHARACTERS:
            return [InvalidCall(f"a list of calls may have {_MAX_CHARACTERS} characters")]
        try:
            with warnings.catch_warnings():
                # Escapes that Python does not know.
                warnings.simplefilter("ignore")
                parsed = ast.parse(body, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            # An answer such as [see (a)] is text; one that ends as a list of calls ends is a failed call.
            return [InvalidCall("the calls are no Python list")] if is_tagged or body.endswith(")]") else []
        if not isinstance(parsed, ast.List) or not all(isinstance(item, ast.Call) for item in parsed.elts):
            return [InvalidCall("the calls are no Python list of calls")] if is_tagged else []
        return [_read_call(item) for item in parsed.elts if isinstance(item, ast.Call)]


def _without_tags(text: str) -> tuple[str, bool]:
    """Return (text between tags, True), or (the text, False) where there are none."""
    for start, end in _TAGS:
        _, tag, rest = text.partition(start)
        if tag:
            return rest.partition(end)[0].strip(), True
    return text.strip(), False


def _read_call(call: ast.Call) -> ParsedCall:
    try:
        name = _dotted_name(call.func)
        if call.args:
            return InvalidCall(f"the arguments of {name} must be named, as in {name}(a=1)")
        arguments = {}
        for keyword in call.keywords:
            if keyword.arg is None:
                return InvalidCall(f"the arguments of {name} must be named, as in {name}(a=1)")
            arguments[keyword.arg] = _value(keyword.value)
        return ToolCall(name, arguments)
    except (ValueError, TypeError, RecursionError, OverflowError):
        return InvalidCall("the arguments of a call must be numbers, texts, lists, dictionaries or constants")


def _dotted_name(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted_name(node.value)}.{node.attr}"
    raise ValueError("a call of something that has no name")


def _value(node: ast.expr) -> Any:
    """Return the value of a literal that JSON can represent. Raises ValueError."""
    match node:
        case ast.Constant(value=bool() | int() | str() | None as value):
            return value
        case ast.Constant(value=float() as value) if math.isfinite(value):
            return value
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=ast.Constant(value=number)) if (
            isinstance(number, int | float) and not isinstance(number, bool) and math.isfinite(number)
        ):
            return -number if isinstance(sign, ast.USub) else number
        case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
            return [_value(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {_key(key): _value(value) for key, value in zip(keys, values, strict=True)}
    raise ValueError("no literal of JSON")


def _key(node: ast.expr | None) -> str:
    match node:
        case ast.Constant(value=str() as value):
            return value
    raise ValueError("a key that is no text")
