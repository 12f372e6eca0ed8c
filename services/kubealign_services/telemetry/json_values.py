"""Conversion of values to JSON."""

import json
import math
from typing import Any


def to_json_value(value: Any) -> Any:
    """Return the value with non-finite floats as "nan", "inf" and "-inf", and unsupported types as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        return {str(key): to_json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_json_value(item) for item in value]
    return str(value)


def to_json(value: Any) -> str:
    """Return the value as one line of JSON."""
    return json.dumps(to_json_value(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
