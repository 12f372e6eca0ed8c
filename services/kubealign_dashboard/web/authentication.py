"""Authentication of every request except for the page's own files and the monitoring endpoints."""

import re
import time
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from kubealign.client.errors import KubealignError, Unauthenticated
from kubealign_dashboard.access import Access, Caller
from kubealign_dashboard.web.parameters import API_PREFIX
from kubealign_dashboard.web.problems import RequestRejected, problem, problem_from_error

#: Used through the API server's service proxy, which consumes the Authorization header.
TOKEN_HEADER = "X-Kubealign-Token"
TOKEN_COOKIE = "kubealign-token"
#: A header that the page's script can send, and a form or image of another site cannot (CSRF protection).
SCRIPT_HEADER = "X-Requested-With"
SCRIPT = "kubealign"

_PUBLIC_PATHS = re.compile(r"/|/(jobs|static)(/.*)?|/favicon\.ico|/healthz|/readyz|/metrics")
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
# Longer than any Kubernetes token, shorter than the header limit of servers.
_MAX_TOKEN_LENGTH = 16_384


class AuthenticationMiddleware:
    """Middleware that stores the Caller in the request's state, or answers 401.

    Where the access accepts a token in the URL of the page, it becomes a cookie, so that it is neither
    displayed nor kept in the history. Elsewhere it is removed from the URL, and the page asks for a token.
    """

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        handler: ASGIApp = self._app
        if _PUBLIC_PATHS.fullmatch(scope["path"]):
            handler = await self._sign_in(scope) or self._app
        else:
            handler = await self._authenticate(scope) or self._app
        await handler(scope, receive, send)

    async def _authenticate(self, scope: Scope) -> Response | None:
        """Authenticate the request. None: it may proceed."""
        path, headers = scope["path"], Headers(scope=scope)
        token, by_cookie = _request_token(headers)
        if by_cookie and scope["method"] not in _SAFE_METHODS and headers.get(SCRIPT_HEADER) != SCRIPT:
            detail = f"a change that is authenticated by a cookie needs the header {SCRIPT_HEADER}: {SCRIPT}"
            return problem(path, 403, "not-from-the-page", detail)
        try:
            scope.setdefault("state", {})["caller"] = await self._caller(token, scope)
        except KubealignError as error:
            return problem_from_error(path, error)
        except RequestRejected as error:
            return problem(path, error.status, error.kind, error.detail, headers=error.headers)
        return None

    async def _caller(self, token: str, scope: Scope) -> Caller:
        if not token:
            raise Unauthenticated(
                f"no token: send `Authorization: Bearer TOKEN`, or the token as {TOKEN_HEADER}"
            )
        if len(token) > _MAX_TOKEN_LENGTH:
            raise Unauthenticated(f"the token is longer than {_MAX_TOKEN_LENGTH} characters")
        caller = await self._access.authenticate(token, _client_address(scope))
        if caller.expires is not None and caller.expires <= time.time():
            raise Unauthenticated("the token has expired: get a new one")
        return caller

    async def _sign_in(self, scope: Scope) -> Response | None:
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        tokens = [value for name, value in query if name == "token"]
        if not tokens or scope["path"].startswith("/static") or scope["method"] != "GET":
            return None
        rest = urlencode([(name, value) for name, value in query if name != "token"])
        # One slash: two would be a URL of another host.
        path = "/" + scope["path"].lstrip("/")
        response = RedirectResponse(path + (f"?{rest}" if rest else ""), 303)
        response.headers["Cache-Control"] = "no-store"
        if not self._access.accepts_token_in_url:
            return response
        try:
            caller = await self._caller(tokens[-1], scope)
        except Unauthenticated:
            # The page itself shows the sign-in form.
            return response
        except KubealignError as error:
            return problem_from_error(path, error)
        set_token_cookie(response, caller, Headers(scope=scope), secure=scope["scheme"] == "https")
        return response


def set_token_cookie(response: Response, caller: Caller, headers: Headers, *, secure: bool) -> None:
    """Set a cookie with the caller's token until the token expires or the browser is closed.

    Browsers send the cookies of a host to all its ports. The path keeps the cookie from the pages that other
    users of this machine serve at other ports, unless they request this path.
    """
    left = None if caller.expires is None else max(0, int(caller.expires - time.time()))
    response.set_cookie(
        cookie_name(headers),
        caller.token,
        max_age=left,
        path=API_PREFIX,
        secure=secure,
        httponly=True,
        samesite="strict",
    )


def cookie_name(headers: Headers) -> str:
    """Return the cookie name for the port.

    Browsers send the cookies of a host to all its ports, and `kubealign run` uses a new port each time.
    """
    port = re.search(r":(\d+)$", headers.get("host", ""))
    return f"{TOKEN_COOKIE}-{port[1]}" if port else TOKEN_COOKIE


def _request_token(headers: Headers) -> tuple[str, bool]:
    """Return the token and True if it came in a cookie."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip(), False
    if token := headers.get(TOKEN_HEADER, "").strip():
        return token, False
    try:
        cookies = SimpleCookie(headers.get("cookie", ""))
    except CookieError:
        return "", False
    for name in (cookie_name(headers), TOKEN_COOKIE):
        if name in cookies and cookies[name].value:
            return cookies[name].value, True
    return "", False


def _client_address(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""
