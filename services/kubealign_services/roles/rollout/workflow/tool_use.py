"""Tool calls within a response (Schick et al. 2023, "Toolformer"; Yao et al. 2023, "ReAct")."""

import re
from collections.abc import Mapping
from typing import Protocol

from kubealign.spec.workflows.workflow import ToolUseSpec
from kubealign_services.roles.rollout.workflow.episode import Episode
from kubealign_services.scoring.functions.errors import RewardError, RewardMissing


class ToolBackend(Protocol):
    """Tool that answers calls."""

    async def invoke(self, argument: str) -> str:
        """Return the result of a call. Raises RewardError if the tool fails."""


class ToolWorkflow:
    """Generates up to the end of a tool call, appends the tool's answer, and continues."""

    def __init__(self, spec: ToolUseSpec, tools: Mapping[str, ToolBackend]) -> None:
        self._spec, self._tools = spec, tools
        self._pattern = re.compile(spec.pattern, re.DOTALL)

    async def __call__(self, episode: Episode) -> None:
        for call in range(self._spec.max_calls + 1):
            turn = await episode.generate(stop=[self._spec.end])
            if turn.stop != self._spec.end or turn.truncated or call == self._spec.max_calls:
                return
            match = self._pattern.search(turn.text)
            if match is None:
                return
            result = await self._call_tool(match, episode)
            if not episode.put(self._spec.answer.replace("{result}", result)):
                return

    async def _call_tool(self, match: re.Match[str], episode: Episode) -> str:
        """Call the tool and return its answer, or an error text for the policy."""
        groups = match.groupdict()
        name = groups.get("name") or (next(iter(self._tools)) if len(self._tools) == 1 else "")
        if name not in self._tools:
            episode.transcript.tool_errors += 1
            return f"error: there is no tool {name or 'named'}; there are {', '.join(sorted(self._tools))}"
        try:
            return await self._tools[name].invoke(groups["argument"] or "")
        except RewardMissing:
            raise
        except RewardError as error:
            # The policy sees the error and may learn from it, but not the file and line.
            episode.transcript.tool_errors += 1
            return f"error: {type(error).__name__.removeprefix('Reward').lower()}"
