"""MCP servers as tool sources: a connection that is made again after it was lost."""

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeAlias

from kubealign.spec.workflows.tool_calls import McpHttp, McpServerSpec, McpStdio
from kubealign_services.tools.errors import ToolFailed

if TYPE_CHECKING:
    from mcp import Client
    from mcp.client._transport import Transport
    from mcp.types import CallToolResult

log = logging.getLogger(__name__)

#: Minimum timeout of a connection in seconds: a process may have to be started.
CONNECT_SECONDS = 30.0
#: Seconds in which a server must answer after a call that it did not answer in time.
_ALIVE_SECONDS = 10.0
#: Seconds in which a connection must end.
_CLOSE_SECONDS = 10.0


class McpUnavailable(RuntimeError):
    """A server cannot be reached, or cannot be used. The message names it and its address."""


class McpServer:
    """One server. An async context manager; used on one event loop.

    The connection is made by the first call, and again by the next call after it was lost: calls in progress
    fail.

    Args:
        variables: Environment variables with the server's credentials.
    """

    def __init__(self, spec: McpServerSpec, variables: Mapping[str, str] = os.environ) -> None:
        """Raises McpUnavailable where the library or a variable is missing."""
        self.name = spec.name
        self._spec = spec
        self._open_transport = _make_transport(spec, variables)
        self._lock = asyncio.Lock()
        self._connection: _Connection | None = None

    async def __aenter__(self) -> "McpServer":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._drop(self._connection)

    async def list_tools(self) -> list[dict[str, Any]]:
        """Return the schemas of the tools that the job offers, in the form that chat templates take.

        Raises:
            McpUnavailable: The server cannot be reached, or does not have a tool that the spec names.
        """
        connection = await self._connect()
        listed: dict[str, dict[str, Any]] = {}
        cursor: str | None = None
        try:
            async with asyncio.timeout(self._spec.timeout_seconds):
                while True:
                    page = await connection.client.list_tools(cursor=cursor)
                    for tool in page.tools:
                        function = {
                            "name": tool.name,
                            "description": tool.description or tool.title or tool.name,
                            "parameters": tool.input_schema,
                        }
                        listed[tool.name] = {"type": "function", "function": function}
                    cursor = page.next_cursor
                    if not cursor:
                        break
        # The libraries of both transports raise errors of their own.
        except Exception as error:
            await self._drop(connection)
            raise McpUnavailable(f"{self._label} does not list its tools: {_describe(error)}") from error
        missing = [name for name in self._spec.tools or () if name not in listed]
        if missing:
            raise McpUnavailable(
                f"{self._label} has no tool {missing[0]}; it has {', '.join(sorted(listed)) or 'none'}"
            )
        if not listed:
            raise McpUnavailable(f"{self._label} has no tools")
        return [listed[name] for name in self._spec.tools or listed]

    async def invoke(self, tool: str, arguments: dict[str, Any]) -> str:
        """Call a tool and return its result as text.

        Raises:
            ToolFailed: The tool fails, does not answer in time, or the server cannot be reached.
        """
        try:
            connection = await self._connect()
        except McpUnavailable as error:
            log.warning("%s", error)
            raise ToolFailed("the tool's server cannot be reached") from error
        timeout = self._spec.timeout_seconds
        try:
            async with asyncio.timeout(timeout):
                result = await connection.client.call_tool(tool, arguments)
        except TimeoutError as error:
            if not await connection.is_alive():
                log.warning("%s does not answer any more: connecting again", self._label)
                await self._drop(connection)
            raise ToolFailed(f"no result within {timeout:g} s") from error
        # The libraries of both transports raise errors of their own, and errors of the protocol for lost
        # connections too.
        except Exception as error:
            if await connection.is_alive():
                raise ToolFailed(_tool_error(error)) from error
            log.warning("%s was lost: %s", self._label, _describe(error))
            await self._drop(connection)
            raise ToolFailed("the connection to the tool's server was lost") from error
        text = _result_text(result)
        if result.is_error:
            raise ToolFailed(text)
        return text

    @property
    def _label(self) -> str:
        spec = self._spec
        address = spec.http.url if spec.http is not None else spec.stdio.command if spec.stdio else ""
        return f"MCP server {spec.name} ({address})"

    async def _connect(self) -> "_Connection":
        """Return the connection; make it where there is none. Raises McpUnavailable."""
        async with self._lock:
            if self._connection is not None and self._connection.is_open:
                return self._connection
            connection = _Connection(self._open_transport, self._label)
            seconds = max(CONNECT_SECONDS, self._spec.timeout_seconds)
            try:
                async with asyncio.timeout(seconds):
                    await connection.open()
            except TimeoutError as error:
                await connection.close()
                raise McpUnavailable(f"{self._label} did not answer within {seconds:g} s") from error
            except BaseException:
                await connection.close()
                raise
            self._connection = connection
            return connection

    async def _drop(self, connection: "_Connection | None") -> None:
        """Close a connection; the next call makes another one."""
        if connection is not None:
            if self._connection is connection:
                self._connection = None
            await connection.close()


class _Connection:
    """A connection, which a task of its own opens and closes: the library's scopes belong to one task."""

    def __init__(self, open_transport: "_OpenTransport", label: str) -> None:
        self._open_transport, self._label = open_transport, label
        self._ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def client(self) -> "Client":
        return self._ready.result()

    @property
    def is_open(self) -> bool:
        return self._task is not None and not self._task.done() and not self._closing.is_set()

    async def open(self) -> None:
        """Open the connection. Raises McpUnavailable."""
        self._task = asyncio.create_task(self._hold())
        awaited: list[asyncio.Future[Any]] = [self._ready, self._task]
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        if not self._ready.done():
            error = self._task.exception()
            raise McpUnavailable(f"{self._label} cannot be reached: {_describe(error)}") from error

    async def close(self) -> None:
        """Close the connection within some seconds."""
        self._closing.set()
        if self._task is not None:
            _, pending = await asyncio.wait([self._task], timeout=_CLOSE_SECONDS)
            for task in pending:
                task.cancel()
            if not pending and not self._task.cancelled() and self._task.exception() is not None:
                log.debug("%s: %s", self._label, _describe(self._task.exception()))

    async def is_alive(self) -> bool:
        """Return True if the server answers a request within some seconds."""
        try:
            async with asyncio.timeout(_ALIVE_SECONDS):
                await self.client.list_tools(cache_mode="bypass")
        # A lost connection raises any error of the transports.
        except Exception:  # noqa: BLE001
            return False
        return True

    async def _hold(self) -> None:
        """Hold the connection open until `close`."""
        from mcp import Client

        async with self._open_transport() as transport, Client(transport) as client:
            self._ready.set_result(client)
            await self._closing.wait()


#: Opens what a transport needs, and returns the transport.
_OpenTransport: TypeAlias = Callable[[], AbstractAsyncContextManager["Transport"]]


def _make_transport(spec: McpServerSpec, variables: Mapping[str, str]) -> _OpenTransport:
    """Return the function that opens the transport. Raises McpUnavailable where something is missing."""
    if find_spec("mcp") is None:
        raise McpUnavailable(
            "spec.rollout.workflow.toolCalls.mcpServers: needs mcp, which is not installed here: "
            "pip install 'kubealign[mcp]'"
        )
    if spec.http is not None:
        return partial(_open_http, spec.http.url, _headers(spec, spec.http, variables))
    assert spec.stdio is not None
    return partial(_open_stdio, spec.stdio, _environment(spec, spec.stdio, variables))


def _headers(spec: McpServerSpec, http: McpHttp, variables: Mapping[str, str]) -> dict[str, str]:
    headers = {name: _read(spec, variable, variables) for name, variable in http.header_variables.items()}
    if http.token_variable is not None:
        headers["Authorization"] = f"Bearer {_read(spec, http.token_variable, variables)}"
    return headers


def _environment(spec: McpServerSpec, stdio: McpStdio, variables: Mapping[str, str]) -> dict[str, str]:
    return {variable: _read(spec, variable, variables) for variable in stdio.variables}


def _read(spec: McpServerSpec, variable: str, variables: Mapping[str, str]) -> str:
    value = variables.get(variable)
    if not value:
        raise McpUnavailable(
            f"MCP server {spec.name}: the environment variable {variable} is not set in this process: set "
            "it from a Secret, by podTemplate of rollout and by controlPods.prepare"
        )
    return value


@asynccontextmanager
async def _open_http(url: str, headers: dict[str, str]) -> AsyncIterator["Transport"]:
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared._httpx_utils import create_mcp_http_client

    async with create_mcp_http_client(headers) as client:
        yield streamable_http_client(url, http_client=client)


@asynccontextmanager
async def _open_stdio(stdio: McpStdio, environment: dict[str, str]) -> AsyncIterator["Transport"]:
    from mcp.client.stdio import StdioServerParameters, stdio_client

    yield stdio_client(StdioServerParameters(command=stdio.command, args=stdio.args, env=environment))


def _result_text(result: "CallToolResult") -> str:
    """Return the text of a result; a part that is no text is named by its kind."""
    parts = [getattr(part, "text", None) or f"[{part.type}]" for part in result.content]
    if not parts and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(parts)


def _tool_error(error: Exception) -> str:
    """Return the message of a server that refused a call."""
    from mcp import MCPError

    return error.message if isinstance(error, MCPError) else "the server gave no usable result"


def _describe(error: BaseException | None) -> str:
    """Return the first cause of an error, which task groups wrap."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
