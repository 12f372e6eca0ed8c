"""Cancellation of work as soon as another event happens."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from kubealign_services.runtime.process.run_until_stopped import cancel_and_wait

T = TypeVar("T")


async def run_until_any(work: Coroutine[Any, Any, T], *watches: Coroutine[Any, Any, None]) -> T:
    """Return the result of `work`, or cancel it as soon as one of the watches raises.

    A watch ends by raising, and its exception is then raised here. Work that ends at the same moment
    counts as done.
    """
    watch_tasks = [asyncio.create_task(watch) for watch in watches]
    work_task = asyncio.create_task(work)
    try:
        await asyncio.wait([work_task, *watch_tasks], return_when=asyncio.FIRST_COMPLETED)
        if not work_task.done():
            for watch in watch_tasks:
                if watch.done():
                    watch.result()
                    raise RuntimeError("a watch returned without raising an exception")
    finally:
        await cancel_and_wait({work_task, *watch_tasks})
        # All tasks have ended; retrieve the other exceptions so that asyncio does not log them.
        await asyncio.gather(work_task, *watch_tasks, return_exceptions=True)
    return work_task.result()
