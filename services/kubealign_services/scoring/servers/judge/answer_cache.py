"""Cache of answers by question; concurrent requests for one answer share it."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class AnswerCache(Generic[T]):
    """The most recently used answers. Used on one event loop.

    Args:
        capacity: Most answers; 0: only requests that run at the same time share an answer.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._answers: OrderedDict[str, T] = OrderedDict()
        self._running: dict[str, asyncio.Task[T]] = {}

    async def get(self, key: str, ask: Callable[[], Awaitable[T]]) -> tuple[T, bool]:
        """Return the answer, and whether it was there, or being asked for, already. Raises what `ask` raises.

        A caller that is cancelled does not cancel the request that it shares.
        """
        if key in self._answers:
            self._answers.move_to_end(key)
            return self._answers[key], True
        is_shared = key in self._running
        if not is_shared:
            self._running[key] = asyncio.create_task(self._ask(key, ask))
        return await asyncio.shield(self._running[key]), is_shared

    async def _ask(self, key: str, ask: Callable[[], Awaitable[T]]) -> T:
        try:
            answer = await ask()
        finally:
            del self._running[key]
        if self._capacity:
            self._answers[key] = answer
            while len(self._answers) > self._capacity:
                self._answers.popitem(last=False)
        return answer

    async def close(self) -> None:
        """Cancel the requests that run."""
        running = list(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
