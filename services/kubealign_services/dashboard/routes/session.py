"""Routes for the caller's session and namespaces."""

from typing import Any

from fastapi import APIRouter, Request, Response

from kubealign import __version__
from kubealign_services.dashboard.admission import AnyDoor
from kubealign_services.dashboard.authentication import cookie_name, keep
from kubealign_services.dashboard.documentation import errors
from kubealign_services.dashboard.models import Namespaces, Session
from kubealign_services.dashboard.parameters import API

router = APIRouter(prefix=API, tags=["session"])


@router.get("/session", response_model=Session, responses=errors(), summary="Read the session")
async def session(door: AnyDoor) -> dict[str, Any]:
    """Return the caller of this request's token, and the site."""
    return {
        "user": door.caller.name,
        "site": door.reader.kind,
        "readOnly": door.access.read_only,
        "namespace": door.reader.namespace,
        "version": __version__,
    }


@router.post("/session", status_code=204, responses=errors(), summary="Store the token in a cookie")
async def sign_in(door: AnyDoor, request: Request) -> Response:
    """Store the token in a cookie that the browser sends with later requests and that no script can read."""
    response = Response(status_code=204)
    keep(response, door.caller, request.headers, secure=request.url.scheme == "https")
    return response


@router.delete("/session", status_code=204, responses=errors(), summary="Delete the cookie")
async def sign_out(door: AnyDoor, request: Request) -> Response:
    """Delete the cookie. The token itself stays valid."""
    response = Response(status_code=204)
    response.delete_cookie(
        cookie_name(request.headers), secure=request.url.scheme == "https", httponly=True, samesite="strict"
    )
    return response


@router.get("/namespaces", response_model=Namespaces, responses=errors(), summary="List the visible namespaces")
async def namespaces(door: AnyDoor) -> dict[str, Any]:
    """Return the namespaces whose jobs the caller may list."""
    return {"items": sorted(await door.access.namespaces(door.caller))}
