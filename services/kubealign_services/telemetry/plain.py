"""Values as JSON can hold them."""

import json
import math
from typing import Any


def plain(value: Any) -> Any:
    """The value with numbers that JSON lacks written out as "nan", "inf" and "-inf", and what it cannot
    hold as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        return {str(key): plain(held) for key, held in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(held) for held in value]
    return str(value)


def to_json(value: Any) -> str:
    """One line of JSON."""
    return json.dumps(plain(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
