"""Who asks. Nobody gets past this to anything but the page's own files and what machines look at."""

import re
import time
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from kubealign.client.errors import KubealignError, Unauthenticated
from kubealign_services.dashboard.access import Access, Caller
from kubealign_services.dashboard.problems import of_error, problem

#: For the API server's service proxy, which keeps Authorization to itself.
TOKEN_HEADER = "X-Kubealign-Token"
TOKEN_COOKIE = "kubealign-token"
#: What a script of the page can send and a form or a picture of another page cannot.
SCRIPT_HEADER = "X-Requested-With"
SCRIPT = "kubealign"

_OPEN = re.compile(r"/|/(jobs|static)(/.*)?|/favicon\.ico|/healthz|/readyz|/metrics")
_READING = ("GET", "HEAD", "OPTIONS")
# Longer than any token of Kubernetes, shorter than what servers take as a header.
_LONGEST_TOKEN = 16_384


class Authentication:
    """Puts the Caller into the request's state, or answers 401. A token in the address of the page becomes a
    cookie, so that it is neither shown nor kept in the browser's history."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        handler: ASGIApp = self._app
        if _OPEN.fullmatch(scope["path"]):
            handler = await self._sign_in(scope) or self._app
        else:
            handler = await self._known(scope) or self._app
        await handler(scope, receive, send)

    async def _known(self, scope: Scope) -> Response | None:
        """None: let it in."""
        path, headers = scope["path"], Headers(scope=scope)
        token, by_cookie = _token(headers)
        if by_cookie and scope["method"] not in _READING and headers.get(SCRIPT_HEADER) != SCRIPT:
            detail = f"a change that is authenticated by a cookie needs the header {SCRIPT_HEADER}: {SCRIPT}"
            return problem(path, 403, "not-from-the-page", detail)
        try:
            scope.setdefault("state", {})["caller"] = await self._caller(token)
        except KubealignError as error:
            return of_error(path, error)
        return None

    async def _caller(self, token: str) -> Caller:
        if not token:
            raise Unauthenticated(
                f"who asks is not said: send `Authorization: Bearer TOKEN`, or the token as {TOKEN_HEADER}"
            )
        if len(token) > _LONGEST_TOKEN:
            raise Unauthenticated("the token is longer than any token is")
        caller = await self._access.caller(token)
        if caller.expires is not None and caller.expires <= time.time():
            raise Unauthenticated("the token has expired: get a new one")
        return caller

    async def _sign_in(self, scope: Scope) -> Response | None:
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = [value for name, value in query if name == "token"]
        if not given or scope["path"].startswith("/static") or scope["method"] != "GET":
            return None
        rest = urlencode([(name, value) for name, value in query if name != "token"])
        # One slash: with two it would be an address elsewhere.
        path = "/" + scope["path"].lstrip("/")
        response = RedirectResponse(path + (f"?{rest}" if rest else ""), 303)
        response.headers["Cache-Control"] = "no-store"
        try:
            caller = await self._caller(given[-1])
        except Unauthenticated:
            # The page says that it is not signed in, and how one does that.
            return response
        except KubealignError as error:
            return of_error(path, error)
        keep(response, caller, Headers(scope=scope), secure=scope["scheme"] == "https")
        return response


def keep(response: Response, caller: Caller, headers: Headers, *, secure: bool) -> None:
    """Have the browser send this caller's token from now on, until it expires or the browser is closed."""
    left = None if caller.expires is None else max(0, int(caller.expires - time.time()))
    response.set_cookie(
        cookie_name(headers), caller.token, max_age=left, secure=secure, httponly=True, samesite="strict"
    )


def cookie_name(headers: Headers) -> str:
    """One for each port: browsers send the cookies of a host to all of them, and `kubealign run` takes a new
    port each time."""
    port = re.search(r":(\d+)$", headers.get("host", ""))
    return f"{TOKEN_COOKIE}-{port[1]}" if port else TOKEN_COOKIE


def _token(headers: Headers) -> tuple[str, bool]:
    """The token, and whether it came by a cookie."""
    scheme, _, held = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and held.strip():
        return held.strip(), False
    if held := headers.get(TOKEN_HEADER, "").strip():
        return held, False
    try:
        cookies = SimpleCookie(headers.get("cookie", ""))
    except CookieError:
        return "", False
    for name in (cookie_name(headers), TOKEN_COOKIE):
        if name in cookies and cookies[name].value:
            return cookies[name].value, True
    return "", False
