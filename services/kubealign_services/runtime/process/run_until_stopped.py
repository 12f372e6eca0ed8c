"""Runs coroutines until the process is asked to stop."""

import asyncio
from collections.abc import Coroutine
from typing import Any

_CANCEL_RETRY_SECONDS = 1.0


async def run_until_stopped(stop: asyncio.Event, *work: Coroutine[Any, Any, Any]) -> None:
    """Run all coroutines concurrently until `stop` is set or one of them ends; then cancel the others and
    wait for them.

    Raises the exception of the coroutine that ended.
    """
    tasks = [asyncio.create_task(part) for part in work]
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
        ended = [task for task in tasks if task.done()]
    finally:
        await cancel_and_wait({stopping, *tasks})
    for task in ended:
        task.result()


async def cancel_and_wait(tasks: set[asyncio.Task[Any]]) -> None:
    """Cancel the tasks until all have ended.

    Cancels repeatedly: a task whose result arrives together with its cancellation may lose the
    cancellation.
    """
    left = tasks
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=_CANCEL_RETRY_SECONDS)
