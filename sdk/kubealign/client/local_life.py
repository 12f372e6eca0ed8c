"""Runners of a folder's jobs, started, told to stop, and ended. Nothing here blocks the event loop."""

import asyncio
import time

from kubealign.client.errors import Conflict, Unavailable
from kubealign.client.records import JobRef
from kubealign.local.event_log import EventLog
from kubealign.local.failure import RunRefused
from kubealign.local.launch import kill, launch, stop
from kubealign.local.run_folder import RunFolder
from kubealign.local.run_lock import Holder
from kubealign.local.run_status import Phase, read_status

_LOOK_SECONDS = 0.1
_NAMED_SECONDS = 10.0
#: Beyond the processes' own grace period: the servers', and the last look.
_MORE_SECONDS = 60.0
_PATIENCE_SECONDS = 1.0
_ENDING_SECONDS = 60.0


async def start(ref: JobRef, folder: RunFolder, grace: float) -> None:
    """A runner for the job, once the one that is just stopping has gone. Raises Conflict where that takes too
    long, or another runs it."""
    seconds = grace + _MORE_SECONDS
    if not await _gone(folder, seconds):
        raise Conflict(f"{ref} is still stopping after {seconds:g} s: try again once it is Suspended")
    folder.suspension.unlink(missing_ok=True)
    try:
        await asyncio.to_thread(launch, folder.root.parent, folder.root.name)
    except RunRefused as refusal:
        raise Conflict(str(refusal)) from None


async def tell_to_stop(ref: JobRef, folder: RunFolder, told: int | None) -> None:
    """In good order, as by Ctrl-C; who was told before is not told again. Raises Conflict where the runner
    has other jobs to do first."""
    holder = await _named(ref, folder)
    if holder is None:
        folder.suspend(0)
        return
    _refuse_shared(ref, folder, holder)
    if told != holder.pid:
        folder.suspend(holder.pid)
        EventLog(folder.events).tell("Suspending", f"process {holder.pid} was told to stop")
        stop(holder.pid)


async def end(ref: JobRef, folder: RunFolder) -> None:
    """The job's runner at once: what it has not committed is not wanted. Raises Conflict as `tell_to_stop`
    does, and Unavailable for a process that does not end."""
    holder = await _named(ref, folder)
    if holder is None:
        return
    _refuse_shared(ref, folder, holder)
    # The first asks for good order, the second for haste. It cannot clean up after the third.
    for act, seconds in ((stop, _PATIENCE_SECONDS), (stop, _ENDING_SECONDS), (kill, _ENDING_SECONDS)):
        act(holder.pid)
        if await _gone(folder, seconds):
            return
    raise Unavailable(
        f"the runner of {ref} (process {holder.pid}) does not end: end it yourself, then try again"
    )


def _refuse_shared(ref: JobRef, folder: RunFolder, holder: Holder) -> None:
    """`kubealign run` takes several jobs, one after the other."""
    status = read_status(folder.status)
    current = status is not None and status.runner == holder.pid and status.phase is Phase.RUNNING
    if not holder.alone and not current:
        raise Conflict(
            f"{ref} is one of several jobs of a kubealign run (process {holder.pid}) that is at another one: "
            "stop that command, or wait until it has come to this job"
        )


async def _named(ref: JobRef, folder: RunFolder) -> Holder | None:
    """Who has the job's lock. One that has only just begun says so in a moment."""
    deadline = time.monotonic() + _NAMED_SECONDS
    while (holder := folder.lock().holder()) is not None and holder.pid == 0:
        if time.monotonic() > deadline:
            raise Unavailable(
                f"the runner of {ref} has not said who it is for {_NAMED_SECONDS:g} s: try again"
            )
        await asyncio.sleep(_LOOK_SECONDS)
    return holder


async def _gone(folder: RunFolder, seconds: float) -> bool:
    """Whether nobody has the job's lock, or does so in time. A lock that is let go of gives no event."""
    deadline = time.monotonic() + seconds
    while folder.lock().holder() is not None:
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(_LOOK_SECONDS)
    return True
