"""Tools that a policy calls within its response: Python functions, text to text."""

from kubealign.spec.sections.workflow import ToolSpec
from kubealign_services.scoring.functions.process import FunctionProcess, function_target


class ToolProcess(FunctionProcess):
    """One tool, in a process of its own."""

    def __init__(self, spec: ToolSpec) -> None:
        target, description = function_target(spec.function)
        super().__init__(target, f"tool {spec.name}: {description}", spec.timeout_seconds)

    async def invoke(self, argument: str) -> str:
        """Return the tool's output. Raises RewardError where it raises, hangs, or returns anything but text
        or a number.
        """
        reply = await self.request({"argument": argument})
        return str(reply["answer"])
