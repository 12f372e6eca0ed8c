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


class ReraiseCancellation:
    """Context manager that raises at its end a cancellation which arrived within the block and was swallowed
    by an awaited call.
    """

    def __enter__(self) -> Self:
        self._before = _cancellation_count()
        return self

    def raise_if_cancelled(self) -> None:
        """Raise CancelledError when the task was cancelled since the block began."""
        if _cancellation_count() > self._before:
            raise asyncio.CancelledError

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or issubclass(kind, Exception):
            self.raise_if_cancelled()


async def run_with_timeout(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`.

    Raises TimeoutError after `seconds`; `work` is then cancelled until it ends.
    """
    task = asyncio.create_task(work)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if not task.done():
            raise TimeoutError
        return task.result()
    finally:
        await cancel_until_done(task)


async def cancel_until_done(task: asyncio.Task[Any]) -> None:
    """Cancel a task repeatedly until it has ended."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=0.1)


def _cancellation_count() -> int:
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()
