"""Starts and stops the runners of local jobs without blocking the event loop."""

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
#: Time beyond the processes' grace period: that of the servers, and of the last poll.
_MORE_SECONDS = 60.0
_PATIENCE_SECONDS = 1.0
_ENDING_SECONDS = 60.0


async def start(ref: JobRef, folder: RunFolder, grace: float) -> None:
    """Start a runner for the job, once a runner that is stopping has exited.

    Raises Conflict if that takes too long, or if another process runs the job.
    """
    seconds = grace + _MORE_SECONDS
    if not await _gone(folder, seconds):
        raise Conflict(f"{ref} is still stopping after {seconds:g} s: try again once it is Suspended")
    folder.suspension.unlink(missing_ok=True)
    try:
        await asyncio.to_thread(launch, folder.root.parent, folder.root.name)
    except RunRefused as refusal:
        raise Conflict(str(refusal)) from None


async def tell_to_stop(ref: JobRef, folder: RunFolder, told: int | None) -> None:
    """Request a graceful stop of the runner, as by Ctrl-C, unless it was already requested.

    Raises Conflict if the runner has other jobs to do first.
    """
    holder = await _named(ref, folder)
    if holder is None:
        folder.suspend(0)
        return
    _refuse_shared(ref, folder, holder)
    if told != holder.pid:
        folder.suspend(holder.pid)
        EventLog(folder.events).tell("Suspending", f"process {holder.pid} was asked to stop")
        stop(holder.pid)


async def end(ref: JobRef, folder: RunFolder) -> None:
    """Terminate the job's runner; progress since its last checkpoint is lost.

    Raises Conflict like `request_stop`, and Unavailable for a process that does not exit.
    """
    holder = await _named(ref, folder)
    if holder is None:
        return
    _refuse_shared(ref, folder, holder)
    # The first signal stops gracefully, the second forces a stop, the third kills without any cleanup.
    for send_signal, seconds in ((stop, _PATIENCE_SECONDS), (stop, _ENDING_SECONDS), (kill, _ENDING_SECONDS)):
        send_signal(holder.pid)
        if await _gone(folder, seconds):
            return
    raise Unavailable(
        f"the runner of {ref} (process {holder.pid}) does not exit: kill it, then try again"
    )


def _refuse_shared(ref: JobRef, folder: RunFolder, holder: Holder) -> None:
    """Raise Conflict if the runner is a `kubealign run` of several jobs that runs another job now."""
    status = read_status(folder.status)
    current = status is not None and status.runner == holder.pid and status.phase is Phase.RUNNING
    if not holder.alone and not current:
        raise Conflict(
            f"{ref} is one of several jobs of a kubealign run (process {holder.pid}), which is running "
            "another one: stop that command, or wait until this job runs"
        )


async def _named(ref: JobRef, folder: RunFolder) -> Holder | None:
    """Return the holder of the job's lock, waiting shortly for a new runner to write its process id."""
    deadline = time.monotonic() + _NAMED_SECONDS
    while (holder := folder.lock().holder()) is not None and holder.pid == 0:
        if time.monotonic() > deadline:
            raise Unavailable(
                f"the runner of {ref} has not written its process id for {_NAMED_SECONDS:g} s: try again"
            )
        await asyncio.sleep(_LOOK_SECONDS)
    return holder


async def _gone(folder: RunFolder, seconds: float) -> bool:
    """Return True once the job's lock is free, False after a timeout. Releasing a lock triggers no event."""
    deadline = time.monotonic() + seconds
    while folder.lock().holder() is not None:
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(_LOOK_SECONDS)
    return True
