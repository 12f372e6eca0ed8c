"""MCP servers as tool sources: real servers over both transports, which fail, hang and die."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any

import pytest

from kubealign.spec.workflows.tool_calls import McpServerSpec
from kubealign_services.tools import mcp_server
from kubealign_services.tools.errors import ToolFailed
from kubealign_services.tools.mcp_server import McpServer, McpUnavailable
from support.free_address import free_port
from support.mcp_servers import ABSENT, http_server, stdio_server

pytestmark = [pytest.mark.timeout(180), pytest.mark.skipif(bool(ABSENT), reason=ABSENT)]

NAMES = ["add", "describe", "environment", "picture", "fail", "hang", "freeze", "die"]


@asynccontextmanager
async def server(
    transport: dict[str, Any], variables: Mapping[str, str] = MappingProxyType({}), **fields: Any
) -> AsyncIterator[McpServer]:
    spec = McpServerSpec.model_validate({"name": "numbers"} | transport | fields)
    async with McpServer(spec, variables) as opened:
        yield opened


@pytest.fixture(params=["stdio", "http"])
async def transport(request: pytest.FixtureRequest) -> AsyncIterator[dict[str, Any]]:
    if request.param == "stdio":
        yield {"stdio": stdio_server()}
        return
    port = free_port()
    async with http_server(port):
        yield {"http": {"url": f"http://127.0.0.1:{port}/mcp"}}


async def test_tools_are_listed_and_called(transport: dict[str, Any]) -> None:
    async with server(transport) as numbers:
        schemas = {schema["function"]["name"]: schema for schema in await numbers.list_tools()}
        assert list(schemas) == NAMES
        add = schemas["add"]["function"]
        assert (schemas["add"]["type"], add["description"]) == ("function", "Add two numbers.")
        assert {name: entry["type"] for name, entry in add["parameters"]["properties"].items()} == {
            "a": "integer",
            "b": "integer",
        }
        assert add["parameters"]["required"] == ["a", "b"]
        sums = await asyncio.gather(*(numbers.invoke("add", {"a": index, "b": 1}) for index in range(20)))
        assert sums == [str(index + 1) for index in range(20)]
        # All calls use one connection, and so one process.
        first, second = [json.loads(await numbers.invoke("describe", {})) for _ in range(2)]
        assert first == second
        assert await numbers.invoke("picture", {}) == "a square\n[image]"


async def test_the_job_chooses_tools(transport: dict[str, Any]) -> None:
    async with server(transport, tools=["fail", "add"]) as numbers:
        assert [schema["function"]["name"] for schema in await numbers.list_tools()] == ["fail", "add"]
    async with server(transport, tools=["multiply"]) as numbers:
        with pytest.raises(
            McpUnavailable, match=r"MCP server numbers \(.*\) has no tool multiply; it has add, d"
        ):
            await numbers.list_tools()


async def test_errors_of_tools_are_for_the_policy(transport: dict[str, Any]) -> None:
    async with server(transport) as numbers:
        with pytest.raises(ToolFailed, match="no such city"):
            await numbers.invoke("fail", {})
        with pytest.raises(ToolFailed, match=r"(?i)valid"):
            await numbers.invoke("add", {"a": "x", "b": 1})
        with pytest.raises(ToolFailed, match=r"(?i)unknown tool"):
            await numbers.invoke("multiply", {})
        assert await numbers.invoke("add", {"a": 1, "b": 2}) == "3"


async def test_a_slow_tool_times_out_and_others_go_on(transport: dict[str, Any]) -> None:
    async with server(transport, timeoutSeconds=5) as numbers:
        before = await numbers.invoke("describe", {})
        late = asyncio.create_task(numbers.invoke("hang", {}))
        assert await numbers.invoke("add", {"a": 1, "b": 2}) == "3"
        with pytest.raises(ToolFailed, match="no result within 5 s"):
            await late
        # The server answers, so its connection stays.
        assert await numbers.invoke("describe", {}) == before


async def test_a_dead_server_is_an_error_and_the_next_call_connects_again() -> None:
    async with server({"stdio": stdio_server()}) as numbers:
        before = await numbers.invoke("describe", {})
        waiting = asyncio.create_task(numbers.invoke("hang", {}))
        with pytest.raises(ToolFailed, match="the connection to the tool's server was lost"):
            await numbers.invoke("die", {})
        with pytest.raises(ToolFailed, match="the connection to the tool's server was lost"):
            await waiting
        assert await numbers.invoke("add", {"a": 1, "b": 2}) == "3"
        assert await numbers.invoke("describe", {}) != before


async def test_a_frozen_server_is_replaced() -> None:
    async with server({"stdio": stdio_server()}, timeoutSeconds=5) as numbers:
        before = await numbers.invoke("describe", {})
        with pytest.raises(ToolFailed, match="no result within 5 s"):
            await numbers.invoke("freeze", {})
        assert await numbers.invoke("describe", {}) != before
    with pytest.raises(ProcessLookupError):
        os.kill(json.loads(before)["process"], 0)


async def test_a_server_over_http_dies_and_comes_back() -> None:
    port = free_port()
    async with server({"http": {"url": f"http://127.0.0.1:{port}/mcp"}}, timeoutSeconds=20) as numbers:
        async with http_server(port) as process:
            before = await numbers.invoke("describe", {})
            with pytest.raises(ToolFailed, match="the connection to the tool's server was lost"):
                await numbers.invoke("die", {})
            assert await asyncio.wait_for(process.wait(), 30) == 3
        with pytest.raises(ToolFailed, match="the tool's server cannot be reached"):
            await numbers.invoke("add", {"a": 1, "b": 2})
        async with http_server(port):
            assert await numbers.invoke("add", {"a": 1, "b": 2}) == "3"
            assert await numbers.invoke("describe", {}) != before


async def test_a_token_is_sent_as_a_bearer_token() -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/mcp"
    async with http_server(port, "secret"):
        http = {"http": {"url": url, "tokenVariable": "TOKEN"}}
        async with server(http, {"TOKEN": "secret"}) as numbers:
            assert await numbers.invoke("add", {"a": 1, "b": 2}) == "3"
        header = {"http": {"url": url, "headerVariables": {"Authorization": "HEADER"}}}
        async with server(header, {"HEADER": "Bearer secret"}) as numbers:
            assert await numbers.invoke("add", {"a": 1, "b": 2}) == "3"
        async with server(http, {"TOKEN": "other"}) as numbers:
            with pytest.raises(McpUnavailable, match=rf"MCP server numbers \({url}\)"):
                await numbers.list_tools()
            with pytest.raises(ToolFailed, match="cannot be reached"):
                await numbers.invoke("add", {"a": 1, "b": 2})
    with pytest.raises(McpUnavailable, match="the environment variable TOKEN is not set"):
        McpServer(McpServerSpec.model_validate({"name": "numbers"} | http), {})


async def test_a_process_gets_only_the_variables_that_the_job_names() -> None:
    variables = {"KEY": "1234", "OTHER": "5678"}
    async with server({"stdio": stdio_server() | {"variables": ["KEY"]}}, variables) as numbers:
        assert await numbers.invoke("environment", {"name": "KEY"}) == "1234"
        assert await numbers.invoke("environment", {"name": "OTHER"}) == "not set"


async def test_a_program_that_cannot_start_is_named() -> None:
    async with server({"stdio": {"command": "no-such-server"}}) as numbers:
        with pytest.raises(
            McpUnavailable, match=r"MCP server numbers \(no-such-server\) cannot be reached: FileNotF"
        ):
            await numbers.list_tools()
        with pytest.raises(ToolFailed, match="the tool's server cannot be reached"):
            await numbers.invoke("add", {})


async def test_a_server_that_never_answers_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_server, "CONNECT_SECONDS", 1.0)
    async with server({"stdio": {"command": "sleep", "args": ["3600"]}}, timeoutSeconds=0.5) as numbers:
        with pytest.raises(McpUnavailable, match=r"MCP server numbers \(sleep\) did not answer within 1 s"):
            await numbers.list_tools()
