"""Descriptions of a field for documentation: type, default, bounds, meaning.

Names and values are in backticks.
"""

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from enum import Enum
from functools import cache
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from kubealign.spec.base import MAX_INT32, PATTERN_DESCRIPTIONS
from kubealign.spec.field_lookup import item_type, nested_model, strip_optional


@cache
def schema_properties(model: type[BaseModel]) -> Mapping[str, Any]:
    """Return the JSON schemas of the model's fields, by name. Pydantic needs up to a second for a model."""
    properties: Mapping[str, Any] = model.model_json_schema()["properties"]
    return properties


def describe_type(annotation: Any, link: Callable[[str], str]) -> str:
    """Describe a type.

    Args:
        link: Renders the name of a model.
    """
    annotation = strip_optional(annotation)
    item = item_type(annotation)
    if item is not None:
        count = len(get_args(annotation))
        return (
            f"list of {describe_type(item, link)}"
            if count == 1
            else f"list of {count} x {describe_type(item, link)}"
        )
    model = nested_model(annotation)
    if model is not None:
        return link(model.__name__)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " or ".join(f"`{choice.value}`" for choice in annotation)
    if annotation in _TYPE_NAMES:
        return _TYPE_NAMES[annotation]
    literals = get_args(annotation)
    if all(isinstance(literal, str) for literal in literals):
        return " or ".join(f"`{literal}`" for literal in literals)
    return f"map of {describe_type(literals[1], link)}"


_TYPE_NAMES: dict[Any, str] = {
    int: "integer",
    float: "number",
    str: "text",
    bool: "`true` or `false`",
    Any: "any value",
    datetime: "time",
}


def describe_default(field: FieldInfo) -> str:
    """Describe the default in YAML notation."""
    if field.is_required():
        return "**required**"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return f"`{format_flow(value)}`"


def format_flow(value: Any) -> str:
    """Format a value on one line of YAML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {format_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(format_flow, value)) + "]"
    if isinstance(value, str):
        return str(value) or '""'
    return json.dumps(value)


_BOUND_PHRASES = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
    "minLength": "not empty",
    "maxLength": "at most {} characters",
    "maxItems": "at most {} entries",
    "maxProperties": "at most {} entries",
}


def describe_bounds(schema: dict[str, Any]) -> str:
    """Describe the bounds in a field's JSON schema; empty: no bounds."""
    parts = [part for part in schema.get("anyOf", [schema]) if part.get("type") != "null"]
    if len(parts) != 1 or "prefixItems" in parts[0]:
        parts = parts[0]["prefixItems"][:1] if parts and "prefixItems" in parts[0] else parts[:1]
    bounds: list[str] = []
    for part in parts:
        bounds += [
            words.format(_format_bound(part[key]))
            for key, words in _BOUND_PHRASES.items()
            if key in part and part[key] != MAX_INT32
        ]
        if "pattern" in part:
            bounds.append(PATTERN_DESCRIPTIONS[part["pattern"]])
    return ", ".join(bounds)


def _format_bound(value: float) -> str:
    return "2^53" if value == 2**53 else f"{value:g}" if isinstance(value, float) else str(value)


def describe_meaning(field: FieldInfo) -> str:
    """Return the field's description; for an enum field, followed by the meaning of each value."""
    text = field.description or ""
    choice = strip_optional(field.annotation)
    if isinstance(choice, type) and issubclass(choice, Enum):
        text += " " + " ".join((choice.__doc__ or "").split())
    return text
