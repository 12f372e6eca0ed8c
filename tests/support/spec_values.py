"""Random jobs for property tests: complete jobs with a few changed fields, valid or not."""

import math
from copy import deepcopy
from typing import Any

from hypothesis import strategies as st

from kubealign.spec.job import AlignmentJobSpec
from support.bad_specs import ALGORITHMS, whole_job

_SCHEMA = AlignmentJobSpec.model_json_schema()
_DEFINITIONS: dict[str, Any] = _SCHEMA["$defs"]
_TEXTS = [
    "",
    "a",
    "exact",
    "loss",
    "reference",
    "val/loss",
    "A b",
    "main",
    "/x",
    "../x",
    "x/y",
    "8",
    "16Gi",
    "a:b",
]
_WRONG: list[Any] = [True, 0, -1, 1.5, "text", [], {}, [{}], 2**31]


@st.composite
def jobs(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a complete job with up to two changed fields."""
    job = whole_job(draw(st.sampled_from(ALGORITHMS)))
    for _ in range(draw(st.integers(0, 2))):
        _change(draw, job["spec"], _SCHEMA)
    return job


def _change(draw: st.DrawFn, holder: dict[str, Any], schema: dict[str, Any]) -> None:
    """Set or remove one field of an object or of an object below."""
    fields = schema["properties"]
    if not fields:
        return
    name = draw(st.sampled_from(sorted(fields)))
    field = _resolved(fields[name])
    value = holder.get(name)
    if isinstance(value, dict) and "properties" in field and draw(st.integers(0, 3)):
        _change(draw, value, field)
    elif isinstance(value, list) and value and isinstance(value[0], dict) and draw(st.booleans()):
        _change(draw, draw(st.sampled_from(value)), _resolved(field["items"]))
    elif name in holder and not draw(st.integers(0, 5)):
        del holder[name]
    else:
        holder[name] = _value(draw, field)


def _resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema without references and null."""
    parts = [part for part in schema.get("anyOf", [schema]) if part.get("type") != "null"]
    (part,) = parts
    return _DEFINITIONS[part["$ref"].removeprefix("#/$defs/")] if "$ref" in part else part


def _value(draw: st.DrawFn, schema: dict[str, Any]) -> Any:
    schema = _resolved(schema)
    if not draw(st.integers(0, 60)):
        return deepcopy(draw(st.sampled_from(_WRONG)))
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return draw(st.sampled_from(schema["enum"]))
    match schema["type"]:
        case "boolean":
            return draw(st.booleans())
        case "integer" | "number" as kind:
            return _number(draw, schema, integer=kind == "integer")
        case "string":
            return _text(draw, schema)
        case "array":
            items = schema["prefixItems"][0] if "prefixItems" in schema else schema["items"]
            count = draw(st.integers(0, 3))
            return [_value(draw, items) for _ in range(schema.get("minItems", count))]
        case _:
            return _object(draw, schema)


def _object(draw: st.DrawFn, schema: dict[str, Any]) -> dict[str, Any]:
    if "properties" not in schema:
        ((values),) = schema.get("patternProperties", {"": {"type": "integer"}}).values()
        keys = ["a", "nvidia.com/gpu", "kubealign.dev/job", "-a", "x" * 64]
        return {draw(st.sampled_from(keys)): _value(draw, values) for _ in range(draw(st.integers(0, 2)))}
    fields: dict[str, Any] = schema["properties"]
    if "x-kubealign-union" in schema:
        chosen = draw(
            st.lists(st.sampled_from(sorted(fields)), min_size=1, max_size=1 + (not draw(st.integers(0, 9))))
        )
    else:
        optional = sorted(set(fields) - set(schema.get("required", [])))
        extra = draw(st.lists(st.sampled_from(optional), max_size=3)) if optional else []
        needed = [name for name in schema.get("required", []) if draw(st.integers(0, 60))]
        chosen = [*needed, *extra]
    return {name: _value(draw, fields[name]) for name in chosen}


def _number(draw: st.DrawFn, schema: dict[str, Any], *, integer: bool) -> Any:
    low = schema.get("minimum", schema.get("exclusiveMinimum", 0))
    high = schema.get("maximum", schema.get("exclusiveMaximum", low + 1000))
    edges = st.sampled_from([low, low + 1, high, high - 1, low - 1, high + 1, 1, 2, 64])
    near = min(high, low + 1000)
    within = st.integers(math.ceil(low), math.floor(near)) if integer else st.floats(low, near)
    return draw(st.one_of(within, within, within, edges))


def _text(draw: st.DrawFn, schema: dict[str, Any]) -> str:
    longest = schema.get("maxLength", 64)
    odd = st.sampled_from([*_TEXTS, "x" * longest, "x" * (longest + 1)]) | st.text(max_size=8)
    if "pattern" not in schema:
        return draw(odd)
    fitting = st.from_regex(schema["pattern"].removeprefix("^").removesuffix("$"), fullmatch=True)
    return draw(st.one_of(fitting, fitting, fitting, odd))
