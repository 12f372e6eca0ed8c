"""The OpenAPI document: what FastAPI cannot know of these routes."""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Security
from fastapi.openapi.utils import get_openapi
from fastapi.security import APIKeyCookie, APIKeyHeader, HTTPBearer
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from kubealign.spec.job import API_VERSION, KIND, AlignmentJob
from kubealign_services.dashboard.authentication import TOKEN_COOKIE, TOKEN_HEADER
from kubealign_services.dashboard.models import Suspension, WantedScale
from kubealign_services.dashboard.problems import PROBLEM, Problem

_COMPONENT = "#/components/schemas/{model}"
_MEANINGS = {
    400: "What was sent cannot be read.",
    401: "Nobody knows who asks: the token is missing, wrong or expired.",
    403: "Whoever asks may not do this here.",
    404: "There is no such job.",
    409: "The job has changed meanwhile, is there already, or is in a state that does not allow it.",
    413: "The body is too long.",
    415: "The body is of another type.",
    422: "A parameter or the body is not valid: `errors` says where.",
    429: "Too many streams are open.",
    503: "What this service needs does not answer: try again.",
}

#: For documentation alone: Authentication has looked at the token before.
AUTHENTICATED = [
    Security(HTTPBearer(auto_error=False, scheme_name="bearer", description="A token.")),
    Security(
        APIKeyHeader(
            name=TOKEN_HEADER,
            auto_error=False,
            scheme_name="header",
            description="The same, where a proxy keeps Authorization to itself.",
        )
    ),
    Security(
        APIKeyCookie(
            name=TOKEN_COOKIE,
            auto_error=False,
            scheme_name="cookie",
            description="The same, as the page has it. A change needs `X-Requested-With: kubealign` besides.",
        )
    ),
]

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


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What a route may answer besides, and what every route may."""
    schema = {"$ref": _COMPONENT.format(model="Problem")}
    return {
        status: {"description": _MEANINGS[status], "content": {PROBLEM: {"schema": schema}}}
        for status in sorted({401, 403, 422, 503, *statuses})
    }


def answers(model: type[BaseModel], description: str, status: int = 200) -> dict[int | str, dict[str, Any]]:
    """What a route answers when all is well, where it writes its answer itself."""
    return {status: {"model": model, "description": description}}


def stream(
    media_type: str, description: str, schema: Mapping[str, Any], example: Any
) -> dict[int | str, dict[str, Any]]:
    """The same, of an answer that goes on. `schema` and `example`: of one part of it."""
    content = {media_type: {"schema": dict(schema), "example": example}}
    return {200: {"description": description, "content": content}}


def server_sent(*names: str) -> dict[str, Any]:
    """The schema of server-sent events with these names. The data of each is JSON."""
    return {
        "type": "object",
        "properties": {
            "event": {"enum": list(names)},
            "id": {"type": "string", "description": "What the stream is resumed from."},
            "data": {"type": "string", "contentMediaType": "application/json"},
            "retry": {"type": "integer", "minimum": 0},
        },
    }


def body(media_type: str, schema: Mapping[str, Any], example: Any) -> dict[str, Any]:
    """`openapi_extra` of a route that reads its body itself."""
    return {
        "requestBody": {
            "required": True,
            "content": {media_type: {"schema": dict(schema), "example": example}},
        }
    }


def component(model: type[BaseModel]) -> dict[str, str]:
    """The schema of one of the models that are sent."""
    return {"$ref": _COMPONENT.format(model=model.__name__)}


def install(app: FastAPI) -> None:
    """Have `app.openapi()` tell everything."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            told = get_openapi(
                title=app.title, version=app.version, description=app.description, routes=app.routes
            )
            _, schemas = models_json_schema(
                [(model, "validation") for model in (AlignmentJob, WantedScale, Suspension, Problem)],
                ref_template=_COMPONENT,
            )
            known = told.setdefault("components", {}).setdefault("schemas", {})
            for name, schema in schemas["$defs"].items():
                known.setdefault(name, schema)
            app.openapi_schema = told
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
