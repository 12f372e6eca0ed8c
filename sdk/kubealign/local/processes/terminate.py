"""Termination of processes: SIGTERM first, SIGKILL after the grace period."""

import asyncio
from collections.abc import Collection

from kubealign.local.errors import RunFailed
from kubealign.local.processes.fork_server import ChildProcess

#: A killed process that has not exited by then is stuck in the kernel.
KILL_SECONDS = 20.0


async def terminate_all(children: Collection[ChildProcess], grace: float, force: asyncio.Event) -> list[str]:
    """Send SIGTERM to all processes, and SIGKILL to those left after `grace` seconds or as soon as the event
    is set.

    Returns the names of the processes that had to be killed. Raises RunFailed for a process that cannot be
    killed.
    """
    for child in children:
        child.terminate()
    if not force.is_set():
        exits = asyncio.ensure_future(_wait_all(children))
        forced = asyncio.ensure_future(_wait_for_event(force))
        await asyncio.wait({exits, forced}, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        forced.cancel()
        exits.cancel()
    remaining = [child for child in children if child.is_running]
    await kill_all(remaining)
    return [child.name for child in remaining]


async def kill_all(children: Collection[ChildProcess]) -> None:
    """Send SIGKILL and wait for the exits. Raises RunFailed for a process that cannot be killed."""
    for child in children:
        child.kill()
    try:
        async with asyncio.timeout(KILL_SECONDS):
            await _wait_all(children)
    except TimeoutError:
        stuck = ", ".join(f"{child.name} (process {child.pid})" for child in children if child.is_running)
        raise RunFailed(f"these processes cannot be killed, they are stuck in the kernel: {stuck}") from None


async def _wait_all(children: Collection[ChildProcess]) -> None:
    for child in children:
        await child.wait()


async def _wait_for_event(event: asyncio.Event) -> None:
    await event.wait()
