"""Ending processes: asked first, made to after the grace period."""

import asyncio
from collections.abc import Collection

from kubealign.local.failure import RunFailed
from kubealign.local.fork_server import Child

#: A killed process that has not gone by then is stuck in the kernel.
KILL_SECONDS = 20.0


async def end(children: Collection[Child], grace: float, hurry: asyncio.Event) -> list[str]:
    """SIGTERM to all, and SIGKILL to those left after `grace` seconds, or as soon as `hurry` is set.

    Returns the names of those that had to be killed. Raises RunFailed for a process that cannot be ended."""
    for child in children:
        child.terminate()
    if not hurry.is_set():
        exits = asyncio.ensure_future(_all_gone(children))
        impatience = asyncio.ensure_future(_until(hurry))
        await asyncio.wait({exits, impatience}, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        impatience.cancel()
        exits.cancel()
    late = [child for child in children if child.running]
    await kill(late)
    return [child.name for child in late]


async def kill(children: Collection[Child]) -> None:
    """SIGKILL, and wait until they are gone. Raises RunFailed for a process that cannot be ended."""
    for child in children:
        child.kill()
    try:
        async with asyncio.timeout(KILL_SECONDS):
            await _all_gone(children)
    except TimeoutError:
        stuck = ", ".join(f"{child.name} (process {child.pid})" for child in children if child.running)
        raise RunFailed(f"these processes cannot be ended, they are stuck in the kernel: {stuck}") from None


async def _all_gone(children: Collection[Child]) -> None:
    for child in children:
        await child.wait()


async def _until(event: asyncio.Event) -> None:
    await event.wait()
