"""Tool calls in the model's own format: each turn's calls are answered, and the policy continues."""

import asyncio
import math

from kubealign.spec.workflows.tool_calls import ToolCallsSpec
from kubealign_services.data.tokenization.tool_turns import ToolResult, ToolTurns
from kubealign_services.roles.rollout.workflow.episode import Episode
from kubealign_services.tools.errors import ToolFailed
from kubealign_services.tools.parsers.contract import ParsedCall, ToolCall, ToolCallParser
from kubealign_services.tools.toolbox import Toolbox

#: Most characters of an error that the policy reads: a server's message may be a page.
_ERROR_CHARACTERS = 1000


class ToolCallWorkflow:
    """Generates a turn, answers its calls, appends the results as the chat template renders them, and
    continues. The response ends with a turn without calls.
    """

    def __init__(
        self, spec: ToolCallsSpec, toolbox: Toolbox, parser: ToolCallParser, turns: ToolTurns
    ) -> None:
        self._spec, self._toolbox, self._parser, self._turns = spec, toolbox, parser, turns

    async def __call__(self, episode: Episode) -> None:
        calls_left = math.inf if self._spec.max_calls is None else self._spec.max_calls
        for turns_left in reversed(range(self._spec.max_turns)):
            start = len(episode.transcript.tokens)
            turn = await episode.generate()
            if turn.truncated or turns_left == 0:
                return
            tokens = episode.transcript.tokens[start:]
            calls = self._parser.parse(self._turns.turn_text(tokens))
            if not calls or calls_left <= 0:
                return
            answered = calls if self._spec.parallel_calls else calls[:1]
            results = await asyncio.gather(
                *(
                    self._answer(call, episode, is_allowed=index < calls_left)
                    for index, call in enumerate(answered)
                )
            )
            calls_left -= len(answered)
            if not episode.append(self._turns.follow(tokens, results)):
                return

    async def _answer(self, call: ParsedCall, episode: Episode, *, is_allowed: bool) -> ToolResult:
        """Return the result of a call, or an error for the policy."""
        name = call.name if isinstance(call, ToolCall) else ""
        try:
            if not is_allowed:
                raise ToolFailed(f"a response may have {self._spec.max_calls} calls")
            return ToolResult(name, await self._toolbox.answer(call))
        except ToolFailed as failure:
            episode.transcript.tool_errors += 1
            return ToolResult(name, f"error: {failure}"[:_ERROR_CHARACTERS])
