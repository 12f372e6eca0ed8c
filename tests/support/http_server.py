"""A server of aiohttp on a free port, for tests of clients."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web


@asynccontextmanager
async def serving(
    app: web.Application, port: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncIterator[str]:
    """Serve the application on loopback; yield its URL.

    Args:
        port: Port; 0: a free one.
        tls: Serve HTTPS by it.
    """
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", port, reuse_address=True, ssl_context=tls)
        await site.start()
        host, bound = runner.addresses[0][:2]
        yield f"{'http' if tls is None else 'https'}://{host}:{bound}"
    finally:
        await runner.cleanup()
