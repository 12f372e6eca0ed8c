"""Catalog of a job's tools: listed once, when the job is prepared, and read by the workers.

The prompts contain the schemas, so the tools stay those of the preparation while the job runs.
"""

import asyncio
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kubealign.spec.workflows.tool_calls import ToolCallsSpec, TypedToolSpec
from kubealign_services.data.errors import DataError
from kubealign_services.data.prepared_files import TOOLS
from kubealign_services.scoring.functions.errors import RewardError
from kubealign_services.tools.arguments import ArgumentValidator, closed_parameters
from kubealign_services.tools.function_tool import describe_function_tool
from kubealign_services.tools.mcp_server import McpServer, McpUnavailable

#: Functions that are described at the same time: each process imports transformers.
_DESCRIBED_AT_ONCE = 4

_FIELD = "spec.rollout.workflow.toolCalls"


@dataclass(frozen=True)
class CatalogTool:
    """A tool. schema: as chat templates take it. function: index in toolCalls.tools; None: a tool of an MCP
    server. server: that server's name; None: a function.
    """

    schema: dict[str, Any]
    function: int | None = None
    server: str | None = None

    @property
    def name(self) -> str:
        return str(self.schema["function"]["name"])

    def make_validator(self) -> ArgumentValidator:
        """Return the validator of calls. Raises ValueError where the schema is none."""
        parameters = self.schema["function"]["parameters"]
        return ArgumentValidator(parameters if self.function is None else closed_parameters(parameters))


async def list_tools(spec: ToolCallsSpec) -> list[CatalogTool]:
    """List the tools of a job, functions first.

    Raises:
        DataError: A function has no schema, a server cannot be reached or lacks a tool, a schema is none, or
            two tools have the same name.
    """
    tools = [
        (f"{_FIELD}.tools[{index}]", CatalogTool(schema, function=index))
        for index, schema in enumerate(await _describe_functions(spec))
    ]
    async with AsyncExitStack() as stack:
        for index, server_spec in enumerate(spec.mcp_servers):
            path = f"{_FIELD}.mcpServers[{index}]"
            try:
                server = await stack.enter_async_context(McpServer(server_spec))
                tools += [
                    (path, CatalogTool(schema, server=server.name)) for schema in await server.list_tools()
                ]
            except McpUnavailable as error:
                raise DataError(f"{path}: {error}") from error
    _check_names(tools)
    for path, tool in tools:
        try:
            tool.make_validator()
        except ValueError as error:
            raise DataError(f"{path}: the schema of {tool.name} {error}") from error
    return [tool for _, tool in tools]


async def _describe_functions(spec: ToolCallsSpec) -> list[dict[str, Any]]:
    """Return the schema of each function. Raises DataError."""
    slots = asyncio.Semaphore(_DESCRIBED_AT_ONCE)

    async def describe(index: int, typed: TypedToolSpec) -> dict[str, Any]:
        async with slots:
            try:
                return await describe_function_tool(typed)
            except RewardError as error:
                raise DataError(f"{_FIELD}.tools[{index}].function: {error}") from error

    return await asyncio.gather(*(describe(index, typed) for index, typed in enumerate(spec.tools)))


def _check_names(tools: Sequence[tuple[str, CatalogTool]]) -> None:
    paths: dict[str, str] = {}
    for path, tool in tools:
        if tool.name in paths:
            raise DataError(
                f"{path}: {paths[tool.name]} has a tool {tool.name} too: set another name of a function, or "
                "choose tools of the server"
            )
        paths[tool.name] = path


def write_catalog(tools: Sequence[CatalogTool], folder: Path) -> None:
    """Write the catalog of a job that is being prepared."""
    text = json.dumps([asdict(tool) for tool in tools], indent=2, ensure_ascii=False)
    (folder / TOOLS).write_text(text + "\n")


def read_catalog(folder: Path) -> list[CatalogTool]:
    """Return the catalog of a prepared job, empty where it has none. Raises DataError."""
    path = folder / TOOLS
    if not path.exists():
        return []
    try:
        return [CatalogTool(**entry) for entry in json.loads(path.read_text())]
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{path} cannot be read: {error}; delete {folder} to prepare again") from error


def tool_schemas(tools: Sequence[CatalogTool]) -> list[dict[str, Any]] | None:
    """Return the schemas for the chat template; None: the job has no tools."""
    return [tool.schema for tool in tools] or None
