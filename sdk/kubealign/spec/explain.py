"""A model's validation errors in the words of whoever wrote the file."""

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
    """(what is wrong and the remedy, what stands there) of an error about a document of `root`."""
    place: Place = error["loc"]
    held = error["input"]
    kind = error["type"]
    context: dict[str, Any] = error.get("ctx", {})
    match kind:
        case "missing":
            return _missing(root, place), ""
        case "extra_forbidden":
            return _unknown(root, place), shown(held)
        case "union" | "incoherent":
            return error["msg"], "" if held is None else shown(held)
        case "enum" | "literal_error":
            return _choice(str(context["expected"]), held), shown(held)
        case "value_error":
            return str(context["error"]), shown(held)
    if held is None:
        return "is null: give it a value or remove it", ""
    return _wrong_value(kind, context, held) or _wrong_kind(kind, held, root, place) or error["msg"], shown(
        held
    )


def _missing(root: type[BaseModel], place: Place) -> str:
    field = field_at(root, place)
    text = "is required"
    if field is not None and field.description and not isinstance(place[-1], int):
        text += f" ({field.description.rstrip('.')})"
    model = model_at(root, place)
    if model is not None and issubclass(model, Union):
        text += f": set one of {', '.join(allowed(model))} in it"
    return text


def _unknown(root: type[BaseModel], place: Place) -> str:
    name = str(place[-1])
    model = model_at(root, place[:-1])
    if model is None:
        return "is no field here: remove it"
    names = list(allowed(model))
    if not names:
        return f"is no field here: {_parent(place)} has none; remove it"
    text = "is no field here"
    meant = nearest(name, names)
    elsewhere = places_shown(root, to_camel(name))
    if 1 <= len(elsewhere) <= 3 and meant != to_camel(name):
        text += f": did you mean {' or '.join(elsewhere)}?"
    elif meant is not None:
        text += f": did you mean {meant}?"
    one = "exactly one of" if issubclass(model, Union) else "any of"
    return f"{text} {_parent(place)} may have {one} {', '.join(names)}"


def _parent(place: Place) -> str:
    return next((part for part in reversed(place[:-1]) if isinstance(part, str)), "the document")


def _choice(expected: str, held: Any) -> str:
    choices = re.findall(r"'([^']*)'", expected)
    text = f"must be {choices[0]}" if len(choices) == 1 else f"must be one of {', '.join(choices)}"
    meant = nearest(held, choices) if isinstance(held, str) and len(choices) > 1 else None
    return text if meant is None else f"{text}; did you mean {meant}?"


def _wrong_value(kind: str, context: dict[str, Any], held: Any) -> str | None:
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
            return f"must have at most {context['max_length']} characters, it has {len(held)}"
        case "string_pattern_mismatch":
            pattern = context["pattern"]
            return f"must be {PATTERNS[pattern]}" if pattern in PATTERNS else f"must match {pattern}"
        case "too_long":
            return f"must have at most {context['max_length']} entries, it has {context['actual_length']}"
        case _:
            return None


def _exact(bound: float) -> str:
    return str(bound) if isinstance(bound, int) else f"{bound:g}"


def _wrong_kind(kind: str, held: Any, root: type[BaseModel], place: Place) -> str | None:
    match kind:
        case "int_type":
            whole = isinstance(held, float) and held.is_integer()
            return "must be a whole number" + (f": write {int(held)}" if whole else _unquoted(held, int))
        case "float_type":
            return "must be a number" + _unquoted(held, float)
        case "bool_type":
            return "must be true or false" + (": without quotes" if held in ("true", "false") else "")
        case "string_type":
            return "must be text" + ("" if isinstance(held, dict | list) else ": put it in quotes")
        case "list_type" | "tuple_type":
            return "must be a list: begin each entry with a hyphen"
        case "model_type" | "model_attributes_type" | "dict_type":
            return _object(held, root, place)
        case _:
            return None


def _unquoted(held: Any, number: type[int] | type[float]) -> str:
    if not isinstance(held, str):
        return ""
    try:
        number(held)
    except ValueError:
        return ""
    return ": write it without quotes"


def _object(held: Any, root: type[BaseModel], place: Place) -> str:
    model = model_at(root, place)
    if model is None:
        return "must be an object of names and values"
    names = list(allowed(model))
    union = issubclass(model, Union)
    text = f"must be an object with {'exactly one' if union else 'some'} of {', '.join(names)}"
    if not names:
        text = "must be an object without fields: write {}"
    member = nearest(held, names) if isinstance(held, str) and union else None
    if member is not None:
        text += f": write {{{member}: {{}}}}" if model_at(model, (member,)) else f": write {{{member}: ...}}"
    elif isinstance(held, list) and not entry(held):
        text += "; it is no list: remove the hyphens"
    return text
