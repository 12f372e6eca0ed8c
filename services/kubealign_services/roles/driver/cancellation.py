"""Cancellation of work as soon as another event happens."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from kubealign_services.checkpoints.fence import Fence
from kubealign_services.runtime.process.run_until_stopped import cancel_and_wait

T = TypeVar("T")
#: Seconds between two looks for a higher fence: a file system of several machines announces no changes.
_FENCE_SECONDS = 5.0

log = logging.getLogger(__name__)


async def wait_until_replaced(fence: Fence) -> None:
    """Wait until another driver has taken over the run directory. Raises StaleFence then.

    A driver that was stopped for long finds the work of its fence gone from the bus, and would wait for it.
    """
    while True:
        try:
            await asyncio.to_thread(fence.check)
        except OSError as error:
            log.warning("the fences cannot be read: %s", error)
        await asyncio.sleep(_FENCE_SECONDS)


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
