"""Work that goes on until the process is told to stop."""

import asyncio
from collections.abc import Coroutine
from typing import Any

_AGAIN_SECONDS = 1.0


async def until_stopped(stop: asyncio.Event, *work: Coroutine[Any, Any, Any]) -> None:
    """Run all of `work` side by side until `stop` is set or one of them ends; the others are cancelled and
    waited for.

    Raises what the one that ended raised."""
    tasks = [asyncio.create_task(part) for part in work]
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
        ended = [task for task in tasks if task.done()]
    finally:
        await end_all({stopping, *tasks})
    for task in ended:
        task.result()


async def end_all(tasks: set[asyncio.Task[Any]]) -> None:
    """Cancel them until all have ended: one that gets its result with its cancellation may lose it."""
    left = tasks
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=_AGAIN_SECONDS)
