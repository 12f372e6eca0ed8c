"""Termination of processes: SIGTERM first, SIGKILL after the grace period."""

import asyncio
from collections.abc import Collection

from kubealign.local.failure import RunFailed
from kubealign.local.fork_server import Child

#: A killed process that has not exited by then is stuck in the kernel.
KILL_SECONDS = 20.0


async def end(children: Collection[Child], grace: float, hurry: asyncio.Event) -> list[str]:
    """Send SIGTERM to all processes, and SIGKILL to those left after `grace` seconds or as soon as the event
    is set.

    Returns the names of the processes that had to be killed. Raises RunFailed for a process that cannot be
    killed.
    """
    for child in children:
        child.terminate()
    if not hurry.is_set():
        exits = asyncio.ensure_future(_all_gone(children))
        forced = asyncio.ensure_future(_until(hurry))
        await asyncio.wait({exits, forced}, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        forced.cancel()
        exits.cancel()
    remaining = [child for child in children if child.running]
    await kill(remaining)
    return [child.name for child in remaining]


async def kill(children: Collection[Child]) -> None:
    """Send SIGKILL and wait for the exits. Raises RunFailed for a process that cannot be killed."""
    for child in children:
        child.kill()
    try:
        async with asyncio.timeout(KILL_SECONDS):
            await _all_gone(children)
    except TimeoutError:
        stuck = ", ".join(f"{child.name} (process {child.pid})" for child in children if child.running)
        raise RunFailed(f"these processes cannot be killed, they are stuck in the kernel: {stuck}") from None


async def _all_gone(children: Collection[Child]) -> None:
    for child in children:
        await child.wait()


async def _until(event: asyncio.Event) -> None:
    await event.wait()
