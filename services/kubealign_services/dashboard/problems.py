"""What went wrong, as RFC 9457 says it: application/problem+json, for every error of this service."""

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
from kubealign.spec.errors import SpecError, shown
from kubealign_services.dashboard.wire import answer

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
    errors.Unavailable: 503,
}


class Place(BaseModel):
    """One thing that is wrong with what was sent."""

    path: str = Field(
        description="Where: spec.maxSteps, or the name of a parameter; empty: the whole.",
        examples=["spec.maxSteps"],
    )
    message: str = Field(
        description="What is wrong, and what may stand there.", examples=["must be 1 or more"]
    )
    held: str = Field("", description="What stands there, shortened.", examples=["0"])


class Problem(BaseModel):
    """An error, after RFC 9457."""

    type: str = Field(
        description="A name for this kind of error.", examples=["urn:kubealign:problem:job-not-found"]
    )
    title: str = Field(description="The kind of error in a few words.", examples=["Not Found"])
    status: int = Field(description="The response's status.", ge=400, le=599, examples=[404])
    detail: str = Field(
        description="What is wrong, and what to do about it.",
        examples=["there is no job sums in namespace default"],
    )
    instance: str = Field(
        description="What was asked.", examples=["/api/v1/namespaces/default/alignmentjobs/sums"]
    )
    errors: list[Place] = Field(default_factory=list, description="Place by place, where they are known.")


@dataclass
class Refused(Exception):
    """Something about the request itself, before anybody looked at a job. `kind`: the problem's name."""

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
    """The response that tells it."""
    content: dict[str, Any] = {
        "type": f"urn:kubealign:problem:{kind}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "instance": instance,
    }
    if places:
        content["errors"] = [
            {"path": place.path, "message": place.message, "held": place.held} for place in places
        ]
    headers = dict(headers or {})
    if status == 401:
        headers.setdefault("WWW-Authenticate", 'Bearer realm="kubealign"')
    if status in (429, 503):
        headers.setdefault("Retry-After", str(RETRY_SECONDS))
    return answer(content, status, headers, PROBLEM)


def of_error(instance: str, error: errors.KubealignError) -> Response:
    """What a site or an access raised."""
    kind = next((held for held in type(error).__mro__ if held in _STATUS), None)
    status = _STATUS[kind] if kind is not None else 500
    places = error.errors if isinstance(error, errors.JobInvalid) else ()
    return problem(instance, status, _kebab(type(error).__name__), str(error), places)


def install(app: FastAPI) -> None:
    """Have this application answer every error as a problem."""

    async def known(request: Request, error: Exception) -> Response:
        return of_error(request.url.path, cast(errors.KubealignError, error))

    async def refused(request: Request, error: Exception) -> Response:
        held = cast(Refused, error)
        return problem(request.url.path, held.status, held.kind, held.detail, headers=held.headers)

    async def unread(request: Request, error: Exception) -> Response:
        places = [_place(held) for held in cast(RequestValidationError, error).errors()]
        detail = "; ".join(str(place) for place in places)
        return problem(request.url.path, 422, "invalid-request", detail, places)

    async def unrouted(request: Request, error: Exception) -> Response:
        held = cast(HTTPException, error)
        headers = dict(held.headers or {})
        detail = f"there is nothing at {request.url.path}" if held.status_code == 404 else str(held.detail)
        if held.status_code == 405:
            # The router names the methods of one route; a path may have several.
            allowed = ", ".join(sorted(_methods(app, request.scope)))
            headers["Allow"] = allowed
            detail = f"{request.method} is not possible here: {allowed} are"
        kind = _kebab(HTTPStatus(held.status_code).phrase.replace(" ", ""))
        return problem(request.url.path, held.status_code, kind, detail, headers=headers)

    async def broken(request: Request, error: Exception) -> Response:
        detail = "the dashboard itself failed: its log says how"
        return problem(request.url.path, 500, "internal", detail)

    app.add_exception_handler(errors.KubealignError, known)
    app.add_exception_handler(Refused, refused)
    app.add_exception_handler(RequestValidationError, unread)
    app.add_exception_handler(HTTPException, unrouted)
    app.add_exception_handler(Exception, broken)


def _methods(app: FastAPI, scope: Scope) -> set[str]:
    found: set[str] = set()
    for route in iter_route_contexts(app.routes):
        pattern = route.path_regex
        if pattern is not None and pattern.match(scope["path"]):
            found |= set(route.methods or ())
    return found


def _place(error: Mapping[str, Any]) -> SpecError:
    where = [str(part) for part in error.get("loc", ())]
    held = error.get("input")
    return SpecError(
        str(error.get("msg", "is not valid")),
        path=".".join(where[1:] or where),
        held="" if held is None or error.get("type") == "missing" else shown(held),
    )


def _kebab(name: str) -> str:
    return "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("-")
