"""Descriptions of a field for documentation: type, default, bounds, meaning. Names and values are in
backticks.
"""

import json
from collections.abc import Callable
from datetime import datetime
from enum import Enum
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from kubealign.spec.base import MOST, PATTERNS
from kubealign.spec.fields import entry, inner, model_of


def type_words(annotation: Any, link: Callable[[str], str]) -> str:
    """Describe a type.

    Args:
        link: Renders the name of a model.
    """
    annotation = inner(annotation)
    item = entry(annotation)
    if item is not None:
        count = len(get_args(annotation))
        return (
            f"list of {type_words(item, link)}"
            if count == 1
            else f"list of {count} x {type_words(item, link)}"
        )
    model = model_of(annotation)
    if model is not None:
        return link(model.__name__)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " or ".join(f"`{choice.value}`" for choice in annotation)
    if annotation in _TYPES:
        return _TYPES[annotation]
    literals = get_args(annotation)
    if all(isinstance(literal, str) for literal in literals):
        return " or ".join(f"`{literal}`" for literal in literals)
    return f"map of {type_words(literals[1], link)}"


_TYPES: dict[Any, str] = {
    int: "integer",
    float: "number",
    str: "text",
    bool: "`true` or `false`",
    Any: "any value",
    datetime: "time",
}


def default_words(field: FieldInfo) -> str:
    """Describe the default in YAML notation."""
    if field.is_required():
        return "**required**"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return f"`{flow(value)}`"


def flow(value: Any) -> str:
    """Format a value on one line of YAML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(flow, value)) + "]"
    if isinstance(value, str):
        return str(value) or '""'
    return json.dumps(value)


_WORDS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
    "minLength": "not empty",
    "maxLength": "at most {} characters",
    "maxItems": "at most {} entries",
    "maxProperties": "at most {} entries",
}


def bounds_words(schema: dict[str, Any]) -> str:
    """Describe the bounds in a field's JSON schema; empty: no bounds."""
    parts = [part for part in schema.get("anyOf", [schema]) if part.get("type") != "null"]
    if len(parts) != 1 or "prefixItems" in parts[0]:
        parts = parts[0]["prefixItems"][:1] if parts and "prefixItems" in parts[0] else parts[:1]
    bounds: list[str] = []
    for part in parts:
        bounds += [
            words.format(_bound(part[key]))
            for key, words in _WORDS.items()
            if key in part and part[key] != MOST
        ]
        if "pattern" in part:
            bounds.append(PATTERNS[part["pattern"]])
    return ", ".join(bounds)


def _bound(value: float) -> str:
    return "2^53" if value == 2**53 else f"{value:g}" if isinstance(value, float) else str(value)


def meaning(field: FieldInfo) -> str:
    """Return the field's description; for an enum field, followed by the meaning of each value."""
    text = field.description or ""
    choice = inner(field.annotation)
    if isinstance(choice, type) and issubclass(choice, Enum):
        text += " " + " ".join((choice.__doc__ or "").split())
    return text
