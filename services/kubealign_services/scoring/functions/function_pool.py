"""Several processes of one reward function."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from kubealign_services.scoring.functions.function_reward import FunctionReward
from kubealign_services.scoring.functions.results import RewardResult


class FunctionPool:
    """Each call has a process to itself; calls beyond the number of processes wait.

    Args:
        make: Returns a new process of the function.
        processes: Number of processes.
    """

    def __init__(self, make: Callable[[], FunctionReward], processes: int) -> None:
        self._functions = [make() for _ in range(processes)]
        self._idle: asyncio.LifoQueue[FunctionReward] = asyncio.LifoQueue()
        for function in self._functions:
            self._idle.put_nowait(function)

    async def start(self) -> None:
        """Start the processes. Raises what `FunctionReward.start` raises; none runs then."""
        try:
            await asyncio.gather(*(function.start() for function in self._functions))
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End the processes. A call in progress fails."""
        await asyncio.gather(*(function.close() for function in self._functions))

    async def score(
        self, prompts: Sequence[str], responses: Sequence[str], columns: dict[str, list[Any]]
    ) -> list[RewardResult]:
        """Return one result per response, as `FunctionReward.score`."""
        function = await self._idle.get()
        try:
            return await function.score(prompts, responses, columns)
        finally:
            self._idle.put_nowait(function)
