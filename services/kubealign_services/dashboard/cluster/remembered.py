"""Answers that hold for a short time, and are asked for once however many want them."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Answer = TypeVar("Answer")


class Remembered(Generic[Key, Answer]):
    """The `most` last used of them. A failure to answer is not kept: the next who asks tries again."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._held: OrderedDict[Key, tuple[Answer, float]] = OrderedDict()
        self._asked: dict[Key, asyncio.Task[Answer]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def held(self, key: Key) -> Answer | None:
        """None: nothing is known, or no longer."""
        held = self._held.get(key)
        if held is None or self._clock() >= held[1]:
            return None
        self._held.move_to_end(key)
        return held[0]

    def keep(self, key: Key, answer: Answer, seconds: float) -> None:
        """It holds from now on for so long."""
        if seconds <= 0:
            return
        self._held[key] = (answer, self._clock() + seconds)
        self._held.move_to_end(key)
        while len(self._held) > self._most:
            self._held.popitem(last=False)

    async def get(self, key: Key, ask: Callable[[], Awaitable[tuple[Answer, float]]]) -> Answer:
        """What is remembered, or what `ask` answers, with the seconds for which it holds."""
        held = self.held(key)
        if held is not None:
            return held
        task = self._asked.get(key)
        if task is None:
            task = self._asked[key] = asyncio.create_task(self._ask(key, ask))
            task.add_done_callback(_looked_at)
        # Whoever asked first may go away; the others still want to know.
        return await asyncio.shield(task)

    async def _ask(self, key: Key, ask: Callable[[], Awaitable[tuple[Answer, float]]]) -> Answer:
        try:
            answer, seconds = await ask()
        finally:
            del self._asked[key]
        self.keep(key, answer, seconds)
        return answer


def _looked_at(task: asyncio.Task[Answer]) -> None:
    """A failure that nobody waits for any more is no fault of the loop's."""
    if not task.cancelled():
        task.exception()
