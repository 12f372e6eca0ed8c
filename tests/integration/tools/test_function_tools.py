"""Functions as tools in processes of their own: listed, called, and failing without ending a job."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kubealign.spec.workflows.tool_calls import ToolCallsSpec
from kubealign_services.data.errors import DataError
from kubealign_services.tools.catalog import list_tools, read_catalog, tool_schemas, write_catalog
from kubealign_services.tools.errors import ToolFailed
from kubealign_services.tools.parsers.contract import InvalidCall, ToolCall
from kubealign_services.tools.toolbox import Toolbox, open_toolbox
from support.mcp_servers import ABSENT, stdio_server

pytestmark = pytest.mark.timeout(300)

TOOLS = '''
import os
import time


def add(a: int, b: int = 1) -> int:
    """
    Add two numbers.

    Args:
        a: One number.
        b: Another number.
    """
    if a == 13:
        raise ValueError("13 brings bad luck")
    return a + b


async def find(text: str) -> list[str]:
    """
    Find pages.

    Args:
        text: Words.
    """
    return [text, "é"]


def misbehave(how: str) -> object:
    """
    Do not answer.

    Args:
        how: Way of not answering.
    """
    if how == "hang":
        time.sleep(3600)
    if how == "die":
        os._exit(3)
    return object()
'''


def spec(folder: Path) -> ToolCallsSpec:
    path = folder / "tools.py"
    path.write_text(TOOLS)

    def function(name: str) -> dict[str, Any]:
        return {"file": {"path": str(path), "name": name}}

    tools = [
        {"function": function("add")},
        {"name": "search", "function": function("find")},
        {"function": function("misbehave"), "timeoutSeconds": 2},
    ]
    return ToolCallsSpec.model_validate({"tools": tools})


async def test_functions_are_listed_stored_and_called(tmp_path: Path) -> None:
    calls = spec(tmp_path)
    listed = await list_tools(calls)
    assert [tool.name for tool in listed] == ["add", "search", "misbehave"]
    assert listed[0].schema["function"]["parameters"]["required"] == ["a"]
    assert read_catalog(tmp_path) == []
    write_catalog(listed, tmp_path)
    assert read_catalog(tmp_path) == listed
    assert tool_schemas(listed) == [tool.schema for tool in listed]
    assert tool_schemas([]) is None
    async with open_toolbox(calls, listed) as toolbox:
        assert await toolbox.answer(ToolCall("add", {"a": 2})) == "3"
        assert await toolbox.answer(ToolCall("search", {"text": "x"})) == '["x", "é"]'


async def failure(toolbox: Toolbox, call: ToolCall | InvalidCall) -> str:
    with pytest.raises(ToolFailed) as caught:
        await toolbox.answer(call)
    return str(caught.value)


async def test_failures_name_no_file_and_the_tool_goes_on(tmp_path: Path) -> None:
    calls = spec(tmp_path)
    async with open_toolbox(calls, await list_tools(calls)) as toolbox:
        assert await failure(toolbox, ToolCall("add", {"a": 13})) == "ValueError: 13 brings bad luck"
        assert await failure(toolbox, ToolCall("add", {"a": "1"})) == (
            "the arguments of add are not valid: a: '1' is not of type 'integer'"
        )
        assert "'c' was unexpected" in await failure(toolbox, ToolCall("add", {"a": 1, "c": 1}))
        assert await failure(toolbox, ToolCall("mul", {})) == (
            "there is no tool mul; there are add, misbehave, search"
        )
        assert await failure(toolbox, InvalidCall("the call is not JSON")) == "the call is not JSON"
        hang, die, other = (ToolCall("misbehave", {"how": how}) for how in ("hang", "die", "object"))
        assert await failure(toolbox, hang) == "no result within 2 s"
        assert await failure(toolbox, die) == "the tool ended its process"
        assert "not JSON serializable" in await failure(toolbox, other)
        # A tool that hangs does not hold up another one.
        waiting = asyncio.create_task(failure(toolbox, hang))
        assert await toolbox.answer(ToolCall("add", {"a": 2})) == "3"
        assert not waiting.done()
        assert await waiting == "no result within 2 s"


async def test_tools_that_cannot_be_used_are_named_with_their_field(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("def untyped(a):\n    '''Return.'''\n")
    other = {"file": {"path": str(tmp_path / "other.py"), "name": "untyped"}}
    with pytest.raises(
        DataError, match=r"toolCalls\.tools\[0\]\.function: .* missing a type hint in function unty"
    ):
        await list_tools(ToolCallsSpec.model_validate({"tools": [{"function": other}]}))
    missing = {"file": other["file"] | {"name": "typed"}}
    with pytest.raises(DataError, match=r"toolCalls\.tools\[0\]\.function: .* it defines: untyped"):
        await list_tools(ToolCallsSpec.model_validate({"tools": [{"function": missing}]}))
    twice = spec(tmp_path).model_dump(by_alias=True)["tools"][:1] * 2
    with pytest.raises(DataError, match=r"tools\[1\]: .*toolCalls\.tools\[0\] has a tool add too"):
        await list_tools(ToolCallsSpec.model_validate({"tools": twice}))


@pytest.mark.skipif(bool(ABSENT), reason=ABSENT)
async def test_functions_and_servers_together(tmp_path: Path) -> None:
    servers = [{"name": "numbers", "stdio": stdio_server(), "tools": ["describe", "fail"]}]
    tools = spec(tmp_path).model_dump(by_alias=True)["tools"][:1]

    def together() -> ToolCallsSpec:
        return ToolCallsSpec.model_validate({"tools": tools, "mcpServers": servers})

    calls = together()
    listed = await list_tools(calls)
    assert [(tool.name, tool.function, tool.server) for tool in listed] == [
        ("add", 0, None),
        ("describe", None, "numbers"),
        ("fail", None, "numbers"),
    ]
    async with open_toolbox(calls, listed) as toolbox:
        assert await toolbox.answer(ToolCall("add", {"a": 2})) == "3"
        assert '"process"' in await toolbox.answer(ToolCall("describe", {}))
        assert "no such city" in await failure(toolbox, ToolCall("fail", {}))
    servers[0]["tools"] = ["add"]
    with pytest.raises(DataError, match=r"mcpServers\[0\]: .*toolCalls\.tools\[0\] has a tool add too"):
        await list_tools(together())
    servers[0] |= {"stdio": {"command": "no-such-server"}}
    with pytest.raises(
        DataError, match=r"mcpServers\[0\]: MCP server numbers \(no-such-server\) cannot be reached"
    ):
        await list_tools(together())
