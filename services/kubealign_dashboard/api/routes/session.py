"""Routes for the caller's session and namespaces."""

from typing import Any

from fastapi import APIRouter, Request, Response

from kubealign import __version__
from kubealign_dashboard.api.models import NamespaceList, SessionInfo
from kubealign_dashboard.api.openapi import error_responses
from kubealign_dashboard.web.authentication import cookie_name, set_token_cookie
from kubealign_dashboard.web.authorization import AnyRequestContext
from kubealign_dashboard.web.parameters import API_PREFIX

router = APIRouter(prefix=API_PREFIX, tags=["session"])


@router.get("/session", response_model=SessionInfo, responses=error_responses(), summary="Read the session")
async def session(context: AnyRequestContext) -> dict[str, Any]:
    """Return the caller of this request's token, and the site."""
    return {
        "user": context.caller.name,
        "site": context.reader.kind,
        "readOnly": context.access.read_only,
        "namespace": context.reader.namespace,
        "version": __version__,
    }


@router.post("/session", status_code=204, responses=error_responses(), summary="Store the token in a cookie")
async def sign_in(context: AnyRequestContext, request: Request) -> Response:
    """Store the token in a cookie that the browser sends with later requests and that no script can read."""
    response = Response(status_code=204)
    set_token_cookie(response, context.caller, request.headers, secure=request.url.scheme == "https")
    return response


@router.delete("/session", status_code=204, responses=error_responses(), summary="Delete the cookie")
async def sign_out(door: AnyRequestContext, request: Request) -> Response:
    """Delete the cookie. The token itself stays valid."""
    response = Response(status_code=204)
    response.delete_cookie(
        cookie_name(request.headers),
        path=API_PREFIX,
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    return response


@router.get(
    "/namespaces",
    response_model=NamespaceList,
    responses=error_responses(),
    summary="List the visible namespaces",
)
async def namespaces(context: AnyRequestContext) -> dict[str, Any]:
    """Return the namespaces whose jobs the caller may list."""
    return {"items": sorted(await context.access.namespaces(context.caller))}
