"""Runs two components in one process, which ends when the leading one ends or the other one fails."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from kubealign_services.runtime.process.run_until_stopped import cancel_and_wait

#: Seconds for the leading component to end gracefully after the other one has failed.
_SHUTDOWN_SECONDS = 5.0


async def run_together(
    leading: Coroutine[Any, Any, None], follower: Coroutine[Any, Any, None], *, graceful: bool
) -> None:
    """Run both until `leading` ends; then cancel `follower` and wait for it. `follower` may end earlier.

    Raises the error of the component that ended.

    Args:
        graceful: Cancel `leading` and give it some seconds to end if `follower` fails; else leave it to
            the end of the process.
    """
    leading_task, follower_task = asyncio.create_task(leading), asyncio.create_task(follower)
    try:
        await asyncio.wait([leading_task, follower_task], return_when=asyncio.FIRST_COMPLETED)
        if follower_task.done() and not follower_task.cancelled() and follower_task.exception() is not None:
            leading_task.cancel()
            if graceful:
                await asyncio.wait([leading_task], timeout=_SHUTDOWN_SECONDS)
            follower_task.result()
        await leading_task
    finally:
        if not leading_task.done():
            leading_task.cancel()
        await cancel_and_wait({follower_task})
