"""A real MCP server for tests, over stdio or streamable HTTP.

`python -m support.mcp_servers stdio`, or `python -m support.mcp_servers http PORT [TOKEN]`.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

#: Reason to skip tests with MCP; empty where it is installed.
ABSENT = ""
try:
    import mcp  # noqa: F401
except ImportError:
    ABSENT = "mcp is not installed: pip install 'kubealign[mcp]'"


def main(argv: list[str]) -> None:
    """Serve the tools until the input ends, or for ever."""
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.types import ImageContent

    server = MCPServer("numbers", version="1")

    @server.tool()
    def add(a: int, b: int) -> str:
        """Add two numbers."""
        return str(a + b)

    @server.tool()
    def describe() -> dict[str, int]:
        """Return the process of the server."""
        return {"process": os.getpid()}

    @server.tool()
    def environment(name: str) -> str:
        """Return an environment variable of the server."""
        return os.environ.get(name, "not set")

    @server.tool()
    def picture() -> list[ImageContent | str]:
        """Return a picture."""
        return ["a square", ImageContent(type="image", data="AAAA", mime_type="image/png")]

    @server.tool()
    def fail() -> str:
        """Raise an error."""
        raise ToolError("no such city")

    @server.tool()
    async def hang() -> str:
        """Answer after an hour."""
        await asyncio.sleep(3600)
        return "late"

    @server.tool()
    def freeze() -> str:
        """Block the whole server for an hour."""
        os.kill(os.getpid(), signal.SIGSTOP)
        return "late"

    @server.tool()
    def die() -> str:
        """End the server."""
        os._exit(3)

    if argv[0] == "stdio":
        server.run("stdio")
        return
    app = server.streamable_http_app()
    if len(argv) > 2:
        app = _Guarded(app, argv[2])
    import uvicorn

    uvicorn.run(app, host="127.0.0.1", port=int(argv[1]), log_level="error")


class _Guarded:
    """An application that answers 401 to requests without a bearer token."""

    def __init__(self, app: Any, token: str) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope.get("headers", []))
        if scope["type"] == "http" and headers.get(b"authorization") != f"Bearer {self._token}".encode():
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b"unauthorised"})
            return
        await self._app(scope, receive, send)


def stdio_server() -> dict[str, Any]:
    """Return the field `stdio` of the server."""
    # Started by its path: the process has no PYTHONPATH, and this folder is not for its imports.
    return {"command": sys.executable, "args": ["-P", __file__, "stdio"]}


@asynccontextmanager
async def http_server(port: int, *token: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start the server at a port, wait until it listens, and kill it at the end."""
    arguments = ("-m", "support.mcp_servers", "http", str(port), *token)
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, cwd=Path(__file__).parents[1])
    try:
        await _wait_until_serving(f"http://127.0.0.1:{port}/mcp", process)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _wait_until_serving(url: str, process: asyncio.subprocess.Process, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    async with aiohttp.ClientSession() as session:
        while True:
            try:
                async with session.get(url):
                    return
            except aiohttp.ClientError as error:
                if process.returncode is not None or time.monotonic() > deadline:
                    raise AssertionError(f"the MCP server at {url} does not listen") from error
                await asyncio.sleep(0.05)


if __name__ == "__main__":
    main(sys.argv[1:])
