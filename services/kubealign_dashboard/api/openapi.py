"""The OpenAPI document: the parts that FastAPI cannot derive from the routes."""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Security
from fastapi.openapi.utils import get_openapi
from fastapi.security import APIKeyCookie, APIKeyHeader, HTTPBearer
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from kubealign.spec.job import API_VERSION, KIND, AlignmentJob
from kubealign_dashboard.api.models import LabelRequest, ScaleRequest, SuspendRequest
from kubealign_dashboard.web.authentication import TOKEN_COOKIE, TOKEN_HEADER
from kubealign_dashboard.web.problems import PROBLEM, Problem

_COMPONENT = "#/components/schemas/{model}"
_STATUS_DESCRIPTIONS = {
    400: "The request cannot be parsed.",
    401: "The token is missing, invalid or expired.",
    403: "The caller does not have this right.",
    404: "The job does not exist.",
    409: "The job was changed concurrently, exists already, or is in a state that does not allow this.",
    413: "The body is too long.",
    415: "The media type of the body is not supported.",
    422: "A parameter or the body is invalid: see `errors`.",
    429: "Too many streams are open, or too many tokens were rejected.",
    502: "A process of the job has stored metrics that cannot be read: the detail names the key.",
    503: "A service that the dashboard depends on does not answer: retry.",
}

#: For documentation only: AuthenticationMiddleware verifies the token.
SECURITY_SCHEMES = [
    Security(HTTPBearer(auto_error=False, scheme_name="bearer", description="A bearer token.")),
    Security(
        APIKeyHeader(
            name=TOKEN_HEADER,
            auto_error=False,
            scheme_name="header",
            description="The same token, where a proxy consumes the Authorization header.",
        )
    ),
    Security(
        APIKeyCookie(
            name=TOKEN_COOKIE,
            auto_error=False,
            scheme_name="cookie",
            description="The same token, set by the page. A change also needs `X-Requested-With: kubealign`.",
        )
    ),
]

#: Models that routes refer to by `schema_ref`, and that no response has.
_REFERENCED_MODELS = (AlignmentJob, ScaleRequest, SuspendRequest, LabelRequest, Problem)

EXAMPLE_JOB: dict[str, Any] = {
    "apiVersion": API_VERSION,
    "kind": KIND,
    "metadata": {"name": "sums", "labels": {"team": "maths"}},
    "spec": {
        "maxSteps": 100,
        "algorithm": {"sft": {"rowsPerStep": 8}},
        "policy": {"model": {"volume": {"claimName": "models", "path": "base"}}},
        "data": {"demonstrations": {"source": {"volume": {"claimName": "data", "path": "train.jsonl"}}}},
        "checkpoint": {"volume": {"claimName": "runs"}},
    },
}


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the error responses of a route: these statuses and those of every route."""
    schema = {"$ref": _COMPONENT.format(model="Problem")}
    return {
        status: {"description": _STATUS_DESCRIPTIONS[status], "content": {PROBLEM: {"schema": schema}}}
        for status in sorted({401, 403, 422, 429, 503, *statuses})
    }


def success_response(
    model: type[BaseModel], description: str, status: int = 200
) -> dict[int | str, dict[str, Any]]:
    """Return the success response of a route that writes its response itself."""
    return {status: {"model": model, "description": description}}


def stream_response(
    media_type: str, description: str, schema: Mapping[str, Any], example: Any
) -> dict[int | str, dict[str, Any]]:
    """Return the success response of a streaming route.

    Args:
        schema: Schema of one chunk.
        example: Example of one chunk.
    """
    content = {media_type: {"schema": dict(schema), "example": example}}
    return {200: {"description": description, "content": content}}


def sse_schema(*names: str) -> dict[str, Any]:
    """Return the schema of server-sent events with these names. The data of each event is JSON."""
    return {
        "type": "object",
        "properties": {
            "event": {"enum": list(names)},
            "id": {"type": "string", "description": "The position from which the stream can be resumed."},
            "data": {"type": "string", "contentMediaType": "application/json"},
            "retry": {"type": "integer", "minimum": 0},
        },
    }


def request_body(media_type: str, schema: Mapping[str, Any], example: Any) -> dict[str, Any]:
    """Return the `openapi_extra` of a route that reads its body itself."""
    return {
        "requestBody": {
            "required": True,
            "content": {media_type: {"schema": dict(schema), "example": example}},
        }
    }


def schema_ref(model: type[BaseModel]) -> dict[str, str]:
    """Return a reference to the schema of a model."""
    return {"$ref": _COMPONENT.format(model=model.__name__)}


def complete_openapi_document(app: FastAPI) -> None:
    """Make `app.openapi()` return the complete document."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(
                title=app.title, version=app.version, description=app.description, routes=app.routes
            )
            _, schemas = models_json_schema(
                [(model, "validation") for model in _REFERENCED_MODELS],
                ref_template=_COMPONENT,
            )
            components = document.setdefault("components", {}).setdefault("schemas", {})
            for name, schema in schemas["$defs"].items():
                components.setdefault(name, schema)
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
