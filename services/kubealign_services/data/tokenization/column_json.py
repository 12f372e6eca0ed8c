"""JSON encoding of the row columns that accompany a prompt to the rewards."""

import json
import math
from collections.abc import Mapping
from datetime import date, time
from typing import Any


def columns_to_json(columns: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Encode columns as a JSON object.

    Returns (JSON object, names of columns left out because JSON cannot represent them, such as images and
    bytes). Dates and times become ISO 8601 text; NaN and infinities, which JSON lacks, become null.
    """
    encoded: dict[str, str] = {}
    left_out: list[str] = []
    for name, value in columns.items():
        try:
            encoded[name] = json.dumps(_json_value(value), ensure_ascii=False, allow_nan=False)
        except TypeError:
            left_out.append(name)
    body = ", ".join(f"{json.dumps(name, ensure_ascii=False)}: {value}" for name, value in encoded.items())
    return "{" + body + "}", left_out


def _json_value(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, date | time):
        return value.isoformat()
    return value
