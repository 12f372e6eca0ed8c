"""Translates pydantic's validation errors into messages for authors of job files."""

import re
from typing import Any

from pydantic import BaseModel
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails

from kubealign.spec.base import PATTERN_DESCRIPTIONS, SpecUnion
from kubealign.spec.errors import format_value
from kubealign.spec.field_lookup import (
    closest_name,
    condensed_paths_named,
    document_fields,
    field_at,
    item_type,
    model_at,
)
from kubealign.spec.paths import DocumentPath


def error_message(error: ErrorDetails, root: type[BaseModel]) -> tuple[str, str]:
    """Return (message with remedy, invalid value) of an error in a document of `root`."""
    path: DocumentPath = error["loc"]
    value = error["input"]
    error_type = error["type"]
    context: dict[str, Any] = error.get("ctx", {})
    match error_type:
        case "missing":
            return _missing_message(root, path), ""
        case "extra_forbidden":
            return _unknown_field_message(root, path), format_value(value)
        case "union" | "incoherent":
            return error["msg"], "" if value is None else format_value(value)
        case "enum" | "literal_error":
            return _choice_message(str(context["expected"]), value), format_value(value)
        case "value_error":
            return str(context["error"]), format_value(value)
    if value is None:
        return "is null: give it a value or remove it", ""
    return _out_of_bounds_message(error_type, context, value) or _wrong_type_message(
        error_type, value, root, path
    ) or error["msg"], format_value(value)


def _missing_message(root: type[BaseModel], path: DocumentPath) -> str:
    field = field_at(root, path)
    text = "is required"
    if field is not None and field.description and not isinstance(path[-1], int):
        text += f" ({field.description.rstrip('.')})"
    model = model_at(root, path)
    if model is not None and issubclass(model, SpecUnion):
        text += f": set one of {', '.join(document_fields(model))} in it"
    return text


def _unknown_field_message(root: type[BaseModel], path: DocumentPath) -> str:
    name = str(path[-1])
    model = model_at(root, path[:-1])
    if model is None:
        return "is no field here: remove it"
    names = list(document_fields(model))
    if not names:
        return f"is no field here: {_parent_name(path)} has none; remove it"
    text = "is no field here"
    suggestion = closest_name(name, names)
    elsewhere = condensed_paths_named(root, to_camel(name))
    if 1 <= len(elsewhere) <= 4 and suggestion != to_camel(name):
        text += f": did you mean {' or '.join(elsewhere)}?"
    elif suggestion is not None:
        text += f": did you mean {suggestion}?"
    else:
        text += ";"
    one = "exactly one of" if issubclass(model, SpecUnion) else "any of"
    return f"{text} {_parent_name(path)} may have {one} {', '.join(names)}"


def _parent_name(path: DocumentPath) -> str:
    return next((part for part in reversed(path[:-1]) if isinstance(part, str)), "the document")


def _choice_message(expected: str, value: Any) -> str:
    choices = re.findall(r"'([^']*)'", expected)
    text = f"must be {choices[0]}" if len(choices) == 1 else f"must be one of {', '.join(choices)}"
    suggestion = closest_name(value, choices) if isinstance(value, str) and len(choices) > 1 else None
    return text if suggestion is None else f"{text}; did you mean {suggestion}?"


def _out_of_bounds_message(kind: str, context: dict[str, Any], value: Any) -> str | None:
    match kind:
        case "greater_than":
            return f"must be above {context['gt']:g}"
        case "greater_than_equal":
            return f"must be at least {context['ge']:g}"
        case "less_than":
            return f"must be below {_format_bound(context['lt'])}"
        case "less_than_equal":
            return f"must be at most {_format_bound(context['le'])}"
        case "finite_number":
            return "must be a finite number"
        case "string_too_short":
            return "must not be empty"
        case "string_too_long":
            return f"must have at most {context['max_length']} characters, it has {len(value)}"
        case "string_pattern_mismatch":
            pattern = context["pattern"]
            return (
                f"must be {PATTERN_DESCRIPTIONS[pattern]}"
                if pattern in PATTERN_DESCRIPTIONS
                else f"must match {pattern}"
            )
        case "too_long":
            return f"must have at most {context['max_length']} entries, it has {context['actual_length']}"
        case _:
            return None


def _format_bound(bound: float) -> str:
    return str(bound) if isinstance(bound, int) else f"{bound:g}"


def _wrong_type_message(kind: str, value: Any, root: type[BaseModel], path: DocumentPath) -> str | None:
    match kind:
        case "int_type":
            is_integral = isinstance(value, float) and value.is_integer()
            return "must be a whole number" + (
                f": write {int(value)}" if is_integral else _quotes_hint(value, int)
            )
        case "float_type":
            return "must be a number" + _quotes_hint(value, float)
        case "bool_type":
            return "must be true or false" + (": without quotes" if value in ("true", "false") else "")
        case "string_type":
            return "must be text" + ("" if isinstance(value, dict | list) else ": put it in quotes")
        case "list_type" | "tuple_type":
            return "must be a list: begin each entry with a hyphen"
        case "model_type" | "model_attributes_type" | "dict_type":
            return _object_message(value, root, path)
        case _:
            return None


def _quotes_hint(value: Any, number: type[int] | type[float]) -> str:
    if not isinstance(value, str):
        return ""
    try:
        number(value)
    except ValueError:
        return ""
    return ": write it without quotes"


def _object_message(value: Any, root: type[BaseModel], path: DocumentPath) -> str:
    model = model_at(root, path)
    if model is None:
        return "must be an object of names and values"
    names = list(document_fields(model))
    union = issubclass(model, SpecUnion)
    text = f"must be an object with {'exactly one' if union else 'some'} of {', '.join(names)}"
    if not names:
        text = "must be an object without fields: write {}"
    member = closest_name(value, names) if isinstance(value, str) and union else None
    if member is not None:
        text += f": write {{{member}: {{}}}}" if model_at(model, (member,)) else f": write {{{member}: ...}}"
    elif isinstance(value, list) and not item_type(value):
        text += "; it is no list: remove the hyphens"
    return text
