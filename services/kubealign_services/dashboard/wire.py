"""JSON as it leaves this service: one line, no NaN and no infinity."""

import json
import math
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

JSON = "application/json"


def encode(value: Any) -> bytes:
    """UTF-8 on one line. Numbers that JSON lacks become null."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # A lone surrogate, which JSON's escapes can spell, has no UTF-8.
    return text.encode("utf-8", "replace")


def answer(
    value: Any, status: int = 200, headers: Mapping[str, str] | None = None, media_type: str = JSON
) -> Response:
    """A response with this value as JSON."""
    return Response(encode(value), status, dict(headers or {}), media_type)


def finite(number: float | None) -> float | None:
    """None for NaN and infinity."""
    return number if number is not None and math.isfinite(number) else None


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return finite(value)
    if isinstance(value, Mapping):
        return {str(name): _finite(held) for name, held in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(held) for held in value]
    return value
