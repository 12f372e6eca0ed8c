"""Translates pydantic's validation errors into messages for authors of job files."""

import re
from typing import Any

from pydantic import BaseModel
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails

from kubealign.spec.base import PATTERNS, Union
from kubealign.spec.errors import shown
from kubealign.spec.fields import allowed, entry, field_at, model_at, nearest, places_shown
from kubealign.spec.paths import Place


def explain(error: ErrorDetails, root: type[BaseModel]) -> tuple[str, str]:
    """Return (message with remedy, invalid value) of an error in a document of `root`."""
    path: Place = error["loc"]
    value = error["input"]
    error_type = error["type"]
    context: dict[str, Any] = error.get("ctx", {})
    match error_type:
        case "missing":
            return _missing(root, path), ""
        case "extra_forbidden":
            return _unknown(root, path), shown(value)
        case "union" | "incoherent":
            return error["msg"], "" if value is None else shown(value)
        case "enum" | "literal_error":
            return _choice(str(context["expected"]), value), shown(value)
        case "value_error":
            return str(context["error"]), shown(value)
    if value is None:
        return "is null: give it a value or remove it", ""
    return _wrong_value(error_type, context, value) or _wrong_kind(error_type, value, root, path) or error[
        "msg"
    ], shown(value)


def _missing(root: type[BaseModel], path: Place) -> str:
    field = field_at(root, path)
    text = "is required"
    if field is not None and field.description and not isinstance(path[-1], int):
        text += f" ({field.description.rstrip('.')})"
    model = model_at(root, path)
    if model is not None and issubclass(model, Union):
        text += f": set one of {', '.join(allowed(model))} in it"
    return text


def _unknown(root: type[BaseModel], path: Place) -> str:
    name = str(path[-1])
    model = model_at(root, path[:-1])
    if model is None:
        return "is no field here: remove it"
    names = list(allowed(model))
    if not names:
        return f"is no field here: {_parent(path)} has none; remove it"
    text = "is no field here"
    suggestion = nearest(name, names)
    elsewhere = places_shown(root, to_camel(name))
    if 1 <= len(elsewhere) <= 3 and suggestion != to_camel(name):
        text += f": did you mean {' or '.join(elsewhere)}?"
    elif suggestion is not None:
        text += f": did you mean {suggestion}?"
    one = "exactly one of" if issubclass(model, Union) else "any of"
    return f"{text} {_parent(path)} may have {one} {', '.join(names)}"


def _parent(path: Place) -> str:
    return next((part for part in reversed(path[:-1]) if isinstance(part, str)), "the document")


def _choice(expected: str, value: Any) -> str:
    choices = re.findall(r"'([^']*)'", expected)
    text = f"must be {choices[0]}" if len(choices) == 1 else f"must be one of {', '.join(choices)}"
    suggestion = nearest(value, choices) if isinstance(value, str) and len(choices) > 1 else None
    return text if suggestion is None else f"{text}; did you mean {suggestion}?"


def _wrong_value(kind: str, context: dict[str, Any], value: Any) -> str | None:
    match kind:
        case "greater_than":
            return f"must be above {context['gt']:g}"
        case "greater_than_equal":
            return f"must be at least {context['ge']:g}"
        case "less_than":
            return f"must be below {_exact(context['lt'])}"
        case "less_than_equal":
            return f"must be at most {_exact(context['le'])}"
        case "finite_number":
            return "must be a finite number"
        case "string_too_short":
            return "must not be empty"
        case "string_too_long":
            return f"must have at most {context['max_length']} characters, it has {len(value)}"
        case "string_pattern_mismatch":
            pattern = context["pattern"]
            return f"must be {PATTERNS[pattern]}" if pattern in PATTERNS else f"must match {pattern}"
        case "too_long":
            return f"must have at most {context['max_length']} entries, it has {context['actual_length']}"
        case _:
            return None


def _exact(bound: float) -> str:
    return str(bound) if isinstance(bound, int) else f"{bound:g}"


def _wrong_kind(kind: str, value: Any, root: type[BaseModel], path: Place) -> str | None:
    match kind:
        case "int_type":
            is_integral = isinstance(value, float) and value.is_integer()
            return "must be a whole number" + (
                f": write {int(value)}" if is_integral else _unquoted(value, int)
            )
        case "float_type":
            return "must be a number" + _unquoted(value, float)
        case "bool_type":
            return "must be true or false" + (": without quotes" if value in ("true", "false") else "")
        case "string_type":
            return "must be text" + ("" if isinstance(value, dict | list) else ": put it in quotes")
        case "list_type" | "tuple_type":
            return "must be a list: begin each entry with a hyphen"
        case "model_type" | "model_attributes_type" | "dict_type":
            return _object(value, root, path)
        case _:
            return None


def _unquoted(value: Any, number: type[int] | type[float]) -> str:
    if not isinstance(value, str):
        return ""
    try:
        number(value)
    except ValueError:
        return ""
    return ": write it without quotes"


def _object(value: Any, root: type[BaseModel], path: Place) -> str:
    model = model_at(root, path)
    if model is None:
        return "must be an object of names and values"
    names = list(allowed(model))
    union = issubclass(model, Union)
    text = f"must be an object with {'exactly one' if union else 'some'} of {', '.join(names)}"
    if not names:
        text = "must be an object without fields: write {}"
    member = nearest(value, names) if isinstance(value, str) and union else None
    if member is not None:
        text += f": write {{{member}: {{}}}}" if model_at(model, (member,)) else f": write {{{member}: ...}}"
    elif isinstance(value, list) and not entry(value):
        text += "; it is no list: remove the hyphens"
    return text
