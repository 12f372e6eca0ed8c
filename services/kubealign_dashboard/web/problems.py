"""Errors as RFC 9457 problem details (application/problem+json), for every error of this service."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, cast

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import iter_route_contexts
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

from kubealign.client import errors
from kubealign.spec.errors import SpecError, format_value
from kubealign_dashboard.web.json_response import json_response

PROBLEM = "application/problem+json"
RETRY_SECONDS = 5

_STATUS: dict[type[errors.KubealignError], int] = {
    errors.JobNotFound: 404,
    errors.JobExists: 409,
    errors.Conflict: 409,
    errors.NotPossible: 409,
    errors.JobInvalid: 422,
    errors.Unauthenticated: 401,
    errors.Forbidden: 403,
    errors.MetricsUnreadable: 502,
    errors.Unavailable: 503,
}


class InvalidField(BaseModel):
    """One invalid part of a request."""

    path: str = Field(
        description="Path of the invalid part, such as spec.maxSteps, or a parameter name; empty: the body.",
        examples=["spec.maxSteps"],
    )
    message: str = Field(description="The error and the allowed values.", examples=["must be 1 or more"])
    held: str = Field("", description="The invalid value, shortened.", examples=["0"])


class Problem(BaseModel):
    """An error, after RFC 9457."""

    type: str = Field(
        description="URN of this kind of error.", examples=["urn:kubealign:problem:job-not-found"]
    )
    title: str = Field(description="The kind of error in a few words.", examples=["Not Found"])
    status: int = Field(description="The response's status.", ge=400, le=599, examples=[404])
    detail: str = Field(
        description="The error and its remedy.",
        examples=["there is no job sums in namespace default"],
    )
    instance: str = Field(
        description="Path of the request.", examples=["/api/v1/namespaces/default/alignmentjobs/sums"]
    )
    errors: list[InvalidField] = Field(default_factory=list, description="The invalid parts, if known.")


@dataclass
class RequestRejected(Exception):
    """A request that is rejected before a job is accessed. `kind`: name of the problem."""

    status: int
    kind: str
    detail: str
    headers: Mapping[str, str] | None = None


def problem(
    instance: str,
    status: int,
    kind: str,
    detail: str,
    places: Sequence[SpecError] = (),
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return the response for a problem."""
    content: dict[str, Any] = {
        "type": f"urn:kubealign:problem:{kind}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "instance": instance,
    }
    if places:
        content["errors"] = [
            {"path": field.path, "message": field.message, "held": field.value} for field in places
        ]
    headers = dict(headers or {})
    if status == 401:
        headers.setdefault("WWW-Authenticate", 'Bearer realm="kubealign"')
    if status in (429, 503):
        headers.setdefault("Retry-After", str(RETRY_SECONDS))
    return json_response(content, status, headers, PROBLEM)


def problem_from_error(instance: str, error: errors.KubealignError) -> Response:
    """Return the response for an error that a backend or access has raised."""
    kind = next((candidate for candidate in type(error).__mro__ if candidate in _STATUS), None)
    status = _STATUS[kind] if kind is not None else 500
    fields = error.errors if isinstance(error, errors.JobInvalid) else ()
    return problem(instance, status, _kebab_case(type(error).__name__), str(error), fields)


def add_error_handlers(app: FastAPI) -> None:
    """Make the application answer every error as a problem."""

    async def known(request: Request, error: Exception) -> Response:
        return problem_from_error(request.url.path, cast(errors.KubealignError, error))

    async def refused(request: Request, error: Exception) -> Response:
        rejected = cast(RequestRejected, error)
        return problem(
            request.url.path, rejected.status, rejected.kind, rejected.detail, headers=rejected.headers
        )

    async def unread(request: Request, error: Exception) -> Response:
        fields = [_invalid_field(details) for details in cast(RequestValidationError, error).errors()]
        detail = "; ".join(str(field) for field in fields)
        return problem(request.url.path, 422, "invalid-request", detail, fields)

    async def unrouted(request: Request, error: Exception) -> Response:
        http_error = cast(HTTPException, error)
        headers = dict(http_error.headers or {})
        detail = (
            f"{request.url.path} does not exist" if http_error.status_code == 404 else str(http_error.detail)
        )
        if http_error.status_code == 405:
            # The router lists the methods of one route; a path may have several routes.
            allowed = ", ".join(sorted(_allowed_methods(app, request.scope)))
            headers["Allow"] = allowed
            detail = f"{request.method} is not supported here: use {allowed}"
        kind = _kebab_case(HTTPStatus(http_error.status_code).phrase.replace(" ", ""))
        return problem(request.url.path, http_error.status_code, kind, detail, headers=headers)

    async def broken(request: Request, error: Exception) -> Response:
        detail = "internal error of the dashboard: see its log"
        return problem(request.url.path, 500, "internal", detail)

    app.add_exception_handler(errors.KubealignError, known)
    app.add_exception_handler(RequestRejected, refused)
    app.add_exception_handler(RequestValidationError, unread)
    app.add_exception_handler(HTTPException, unrouted)
    app.add_exception_handler(Exception, broken)


def _allowed_methods(app: FastAPI, scope: Scope) -> set[str]:
    allowed: set[str] = set()
    for route in iter_route_contexts(app.routes):
        pattern = route.path_regex
        if pattern is not None and pattern.match(scope["path"]):
            allowed |= set(route.methods or ())
    return allowed


def _invalid_field(error: Mapping[str, Any]) -> SpecError:
    path_parts = [str(part) for part in error.get("loc", ())]
    value = error.get("input")
    return SpecError(
        str(error.get("msg", "is not valid")),
        path=".".join(path_parts[1:] or path_parts),
        value="" if value is None or error.get("type") == "missing" else format_value(value),
    )


def _kebab_case(name: str) -> str:
    return "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("-")
