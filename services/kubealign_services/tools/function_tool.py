"""Python functions as tools, each in a process of its own."""

from typing import Any

from kubealign.spec.workflows.tool_calls import TypedToolSpec
from kubealign_services.scoring.functions.errors import BadReward, RewardHung, RewardRaised
from kubealign_services.scoring.functions.function_process import (
    START_SECONDS,
    FunctionProcess,
    function_target,
)
from kubealign_services.tools.errors import ToolFailed


async def describe_function_tool(spec: TypedToolSpec) -> dict[str, Any]:
    """Return a function's JSON schema, made in a process of its own.

    Raises:
        RewardError: The function cannot be imported, or has no schema.
    """
    target, description = function_target(spec.function)
    # The process imports transformers, which takes seconds.
    seconds = max(START_SECONDS, spec.timeout_seconds)
    async with FunctionProcess(target, f"tool {description}", seconds) as process:
        reply = await process.request({"tool": spec.name})
    schema: dict[str, Any] = reply["schema"]
    return schema


class FunctionTool(FunctionProcess):
    """A typed function. One call runs at a time."""

    def __init__(self, spec: TypedToolSpec) -> None:
        target, description = function_target(spec.function)
        super().__init__(target, f"tool {description}", spec.timeout_seconds)
        self._spec = spec

    async def invoke(self, arguments: dict[str, Any]) -> str:
        """Return the function's result as text.

        Raises:
            ToolFailed: It raises, hangs, ends its process, or returns no JSON value.
            RewardMissing: It cannot be imported any more.
        """
        try:
            reply = await self.request({"arguments": arguments})
        except RewardHung as error:
            raise ToolFailed(f"no result within {self._spec.timeout_seconds:g} s") from error
        except (RewardRaised, BadReward) as error:
            raise ToolFailed("the tool ended its process") from error
        if "failure" in reply:
            raise ToolFailed(reply["failure"])
        return str(reply["answer"])
