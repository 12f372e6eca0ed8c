"""JSON encoding of the responses: one line, without NaN and infinity."""

import json
import math
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

JSON = "application/json"


def encode(value: Any) -> bytes:
    """Encode as UTF-8 JSON on one line. NaN and infinity become null."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(
            _replace_non_finite(value), ensure_ascii=False, allow_nan=False, separators=(",", ":")
        )
    # JSON escapes can spell a lone surrogate, which UTF-8 cannot encode.
    return text.encode("utf-8", "replace")


def json_response(
    value: Any, status: int = 200, headers: Mapping[str, str] | None = None, media_type: str = JSON
) -> Response:
    """Return a response with this value as JSON."""
    return Response(encode(value), status, dict(headers or {}), media_type)


def finite(number: float | None) -> float | None:
    """Return the number, or None for NaN and infinity."""
    return number if number is not None and math.isfinite(number) else None


def _replace_non_finite(value: Any) -> Any:
    if isinstance(value, float):
        return finite(value)
    if isinstance(value, Mapping):
        return {str(name): _replace_non_finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_non_finite(item) for item in value]
    return value
