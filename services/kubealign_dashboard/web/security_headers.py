"""Middleware that protects the browser: security headers on every response, and a Host header check."""

from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kubealign_dashboard.web.problems import problem

# Plotly writes style elements, and exported images are blobs; everything else is a static file.
_PAGE_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self'",
        "connect-src 'self'",
        "manifest-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
_DATA_POLICY = "default-src 'none'; frame-ancestors 'none'; sandbox"
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class SecurityHeadersMiddleware:
    """Adds security headers. Data responses must not be executed, sniffed, framed or cached."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        data = str(scope["path"]).startswith("/api/")

        async def protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers["Content-Security-Policy"] = _DATA_POLICY if data else _PAGE_POLICY
                if data:
                    headers["Cache-Control"] = "no-store"
            await send(message)

        await self._app(scope, receive, protected)


class KnownHostsMiddleware:
    """Rejects requests for unknown host names.

    A foreign site can resolve its own name to this machine (DNS rebinding) and would then share the page's
    origin.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        self._app = app
        self._hosts = frozenset(host.lower().strip("[]") for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            named = Headers(scope=scope).get("host", "")
            if _host(named) not in self._hosts:
                known = ", ".join(sorted(self._hosts))
                detail = f"unknown host {named or '(empty)'}: use {known}"
                await problem(scope["path"], 421, "unknown-host", detail)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _host(named: str) -> str:
    """Return the host without the port."""
    if named.startswith("["):
        return named[1:].partition("]")[0].lower()
    return named.partition(":")[0].lower()
