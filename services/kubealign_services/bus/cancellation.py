"""Cancellation that is not lost.

`asyncio.wait_for` of Python 3.11 returns its result to a caller that is cancelled as the result comes
(https://github.com/python/cpython/issues/86296), and nats-py uses it throughout: a loop around it would run
for ever.
"""

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")


class Heeded:
    """A block at whose end a cancellation that came within it is raised, if what it awaited kept it to
    itself."""

    def __enter__(self) -> Self:
        self._before = _cancellations()
        return self

    def check(self) -> None:
        """Raises CancelledError if the task was cancelled since the block began."""
        if _cancellations() > self._before:
            raise asyncio.CancelledError

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or issubclass(kind, Exception):
            self.check()


async def within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns. Raises TimeoutError after so many seconds; it is cancelled until it heeds it."""
    task = asyncio.create_task(work)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if not task.done():
            raise TimeoutError
        return task.result()
    finally:
        await end(task)


async def end(task: asyncio.Task[Any]) -> None:
    """Cancel it until it has ended."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=0.1)


def _cancellations() -> int:
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()
