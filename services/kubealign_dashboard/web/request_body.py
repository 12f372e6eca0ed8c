"""Request bodies: read after authorization, completely, and up to a maximum length."""

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

from kubealign_dashboard.web.json_response import JSON
from kubealign_dashboard.web.problems import RequestRejected

MERGE_PATCH = "application/merge-patch+json"
#: Slightly below etcd's limit for one object.
MAX_BODY_BYTES = 1_048_576
_MAX_DEPTH = 100

Model = TypeVar("Model", bound=BaseModel)


def json_object_body(*media_types: str) -> Callable[[Request], Any]:
    """Return a dependency that parses the body as a JSON object of one of these media types."""

    async def read(request: Request) -> dict[str, Any]:
        return _parse_object(await _body(request, media_types or (JSON,)))

    return read


async def parse_body(model: type[Model], request: Request) -> Model:
    """Parse the body as this model.

    Raises:
        RequestRejected: Media type or length are not accepted.
        RequestValidationError: The body is invalid.
    """
    try:
        return model.model_validate(_parse_object(await _body(request, (JSON,))))
    except ValidationError as error:
        raise RequestValidationError(
            [{**details, "loc": ("body", *details["loc"])} for details in error.errors(include_url=False)]
        ) from None


async def _body(request: Request, media_types: Sequence[str]) -> bytes:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in media_types:
        detail = f"the body's media type is {media_type or 'missing'}: send {' or '.join(media_types)}"
        raise RequestRejected(415, "unsupported-media-type", detail, {"Accept": ", ".join(media_types)})
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise RequestRejected(413, "too-long", f"the body is longer than {MAX_BODY_BYTES} bytes")
    return bytes(body)


def _parse_object(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise _invalid_body(f"the body is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise _invalid_body("the body must be a JSON object")
    if _depth(document) > _MAX_DEPTH:
        raise _invalid_body(f"the body is nested more than {_MAX_DEPTH} deep")
    return document


def _depth(value: Any) -> int:
    deepest, level = 0, [value]
    while level:
        deepest += 1
        level = [
            child
            for node in level
            if isinstance(node, dict | list)
            for child in (node.values() if isinstance(node, dict) else node)
        ]
    return deepest


def _invalid_body(detail: str) -> RequestValidationError:
    return RequestValidationError([{"type": "json", "loc": ("body",), "msg": detail, "input": None}])
