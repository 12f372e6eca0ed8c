"""Guards against lost cancellations.

`asyncio.wait_for` of Python 3.11 returns its result to a caller that is cancelled as the result arrives
(https://github.com/python/cpython/issues/86296), and nats-py uses it throughout: a loop around it would
never end.
"""

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")


class Heeded:
    """Context manager that raises at its end a cancellation which arrived within the block and was swallowed
    by an awaited call.
    """

    def __enter__(self) -> Self:
        self._before = _cancellations()
        return self

    def check(self) -> None:
        """Raise CancelledError when the task was cancelled since the block began."""
        if _cancellations() > self._before:
            raise asyncio.CancelledError

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or issubclass(kind, Exception):
            self.check()


async def within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`. Raises TimeoutError after `seconds`; `work` is then cancelled until it
    ends.
    """
    task = asyncio.create_task(work)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if not task.done():
            raise TimeoutError
        return task.result()
    finally:
        await end(task)


async def end(task: asyncio.Task[Any]) -> None:
    """Cancel a task repeatedly until it has ended."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=0.1)


def _cancellations() -> int:
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()
