"""Concurrent or sequential calls of roles, and blocking calls in threads."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


async def run_calls(*calls: Coroutine[Any, Any, T], parallel: bool) -> list[T]:
    """Return the results of the calls in order. Raises the first error.

    Args:
        parallel: Run all calls at the same time; otherwise each after the one before it has ended.
    """
    if parallel:
        return await asyncio.gather(*calls)
    try:
        return [await call for call in calls]
    finally:
        for call in calls:
            call.close()  # those that an error has left out


async def run_in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a call that writes files in a thread, so that the event loop goes on.

    A cancellation takes effect once the call has ended: the caller may then clean up or start again, with no
    thread that still writes. The process's exit watchdog bounds a call that a dead volume blocks.
    """
    task = asyncio.create_task(asyncio.to_thread(call, *args, **kwargs))
    is_cancelled = False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            is_cancelled = True
    if is_cancelled:
        await asyncio.gather(task, return_exceptions=True)  # retrieves an exception that nobody awaits
        raise asyncio.CancelledError
    return task.result()
