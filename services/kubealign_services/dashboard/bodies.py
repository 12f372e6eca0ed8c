"""What is sent: read after the caller was let in, whole, and of a bounded length."""

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

from kubealign_services.dashboard.problems import Refused
from kubealign_services.dashboard.wire import JSON

MERGE_PATCH = "application/merge-patch+json"
#: What etcd takes for one object is hardly more.
LONGEST = 1_048_576
_DEEPEST = 100

Model = TypeVar("Model", bound=BaseModel)


def document(*media_types: str) -> Callable[[Request], Any]:
    """A dependency: the body, a JSON object of one of these types."""

    async def read(request: Request) -> dict[str, Any]:
        return _object(await _body(request, media_types or (JSON,)))

    return read


async def read_as(model: type[Model], request: Request) -> Model:
    """The body as this. Raises Refused, RequestValidationError."""
    try:
        return model.model_validate(_object(await _body(request, (JSON,))))
    except ValidationError as error:
        raise RequestValidationError(
            [{**held, "loc": ("body", *held["loc"])} for held in error.errors(include_url=False)]
        ) from None


async def _body(request: Request, media_types: Sequence[str]) -> bytes:
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given not in media_types:
        detail = f"the body is {given or 'of no type'}: send {' or '.join(media_types)}"
        raise Refused(415, "unsupported-media-type", detail, {"Accept": ", ".join(media_types)})
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > LONGEST:
            raise Refused(413, "too-long", f"the body is longer than {LONGEST} bytes")
    return bytes(body)


def _object(body: bytes) -> dict[str, Any]:
    try:
        held = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise _unreadable(f"the body is not JSON: {error}") from None
    if not isinstance(held, dict):
        raise _unreadable("the body must be a JSON object")
    if _depth(held) > _DEEPEST:
        raise _unreadable(f"the body is nested more than {_DEEPEST} deep")
    return held


def _depth(value: Any) -> int:
    deepest, level = 0, [value]
    while level:
        deepest += 1
        level = [
            inner
            for held in level
            if isinstance(held, dict | list)
            for inner in (held.values() if isinstance(held, dict) else held)
        ]
    return deepest


def _unreadable(detail: str) -> RequestValidationError:
    return RequestValidationError([{"type": "json", "loc": ("body",), "msg": detail, "input": None}])
