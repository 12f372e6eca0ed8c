"""The tools of a running job: calls are validated, and sent to functions and servers."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from kubealign.spec.workflows.tool_calls import ToolCallsSpec
from kubealign_services.tools.arguments import ArgumentValidator
from kubealign_services.tools.catalog import CatalogTool
from kubealign_services.tools.errors import ToolFailed
from kubealign_services.tools.function_tool import FunctionTool
from kubealign_services.tools.mcp_server import McpServer
from kubealign_services.tools.parsers.contract import InvalidCall, ParsedCall


class Invoke(Protocol):
    """Call of one tool."""

    async def __call__(self, arguments: dict[str, Any]) -> str:
        """Return the result as text. Raises ToolFailed."""


@dataclass(frozen=True)
class Tool:
    """A tool with the validator of its arguments."""

    validator: ArgumentValidator
    invoke: Invoke


class Toolbox:
    """Answers calls."""

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self._tools = tools

    async def answer(self, call: ParsedCall) -> str:
        """Return the result of a call.

        Raises:
            ToolFailed: The call cannot be read, names no tool, has other arguments than the tool's, or fails.
        """
        if isinstance(call, InvalidCall):
            raise ToolFailed(call.problem)
        tool = self._tools.get(call.name)
        if tool is None:
            raise ToolFailed(f"there is no tool {call.name}; there are {', '.join(sorted(self._tools))}")
        problem = tool.validator.problem(call.arguments)
        if problem is not None:
            raise ToolFailed(f"the arguments of {call.name} are not valid: {problem}")
        return await tool.invoke(call.arguments)


@asynccontextmanager
async def open_toolbox(spec: ToolCallsSpec, catalog: Sequence[CatalogTool]) -> AsyncIterator[Toolbox]:
    """Open the tools of the catalog; their processes and connections end with the block.

    Raises:
        RewardError: A function cannot be started.
        McpUnavailable: A library or a credential is missing.
    """
    async with AsyncExitStack() as stack:
        functions = [await stack.enter_async_context(FunctionTool(typed)) for typed in spec.tools]
        servers = {
            server.name: await stack.enter_async_context(McpServer(server)) for server in spec.mcp_servers
        }
        yield Toolbox(
            {tool.name: Tool(tool.make_validator(), _invoke(tool, functions, servers)) for tool in catalog}
        )


def _invoke(tool: CatalogTool, functions: Sequence[FunctionTool], servers: Mapping[str, McpServer]) -> Invoke:
    if tool.function is not None:
        return functions[tool.function].invoke
    server = servers[str(tool.server)]

    async def invoke(arguments: dict[str, Any]) -> str:
        return await server.invoke(tool.name, arguments)

    return invoke
