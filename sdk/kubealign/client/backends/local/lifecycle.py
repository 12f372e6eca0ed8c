"""Starts and stops the runners of local jobs without blocking the event loop."""

import asyncio
import time

from kubealign.client.errors import Conflict, Unavailable
from kubealign.client.records import JobRef
from kubealign.local.errors import RunRefused
from kubealign.local.run_dir.events import EventLog
from kubealign.local.run_dir.layout import RunDirectory
from kubealign.local.run_dir.lock import LockHolder
from kubealign.local.run_dir.status import Phase, read_status
from kubealign.local.runner.launch import kill_runner, launch_runner, signal_stop

_POLL_SECONDS = 0.1
_HOLDER_TIMEOUT_SECONDS = 10.0
#: Time beyond the processes' grace period: that of the servers, and of the last poll.
_EXTRA_GRACE_SECONDS = 60.0
_FIRST_STOP_TIMEOUT_SECONDS = 1.0
_STOP_TIMEOUT_SECONDS = 60.0


async def start_runner(ref: JobRef, folder: RunDirectory, grace: float) -> None:
    """Start a runner for the job, once a runner that is stopping has exited.

    Raises Conflict if that takes too long, or if another process runs the job.
    """
    seconds = grace + _EXTRA_GRACE_SECONDS
    if not await _wait_until_unlocked(folder, seconds):
        raise Conflict(f"{ref} is still stopping after {seconds:g} s: try again once it is Suspended")
    folder.suspension_file.unlink(missing_ok=True)
    try:
        await asyncio.to_thread(launch_runner, folder.root.parent, folder.root.name)
    except RunRefused as refusal:
        raise Conflict(str(refusal)) from None


async def request_stop(ref: JobRef, folder: RunDirectory, stop_requested_pid: int | None) -> None:
    """Request a graceful stop of the runner, as by Ctrl-C, unless it was already requested.

    Raises Conflict if the runner has other jobs to do first.
    """
    holder = await _wait_for_holder(ref, folder)
    if holder is None:
        folder.mark_suspended(0)
        return
    _check_not_shared(ref, folder, holder)
    if stop_requested_pid != holder.pid:
        folder.mark_suspended(holder.pid)
        EventLog(folder.events).append("Suspending", f"process {holder.pid} was asked to stop")
        signal_stop(holder.pid)


async def terminate_runner(ref: JobRef, folder: RunDirectory) -> None:
    """Terminate the job's runner; progress since its last checkpoint is lost.

    Raises Conflict like `request_stop`, and Unavailable for a process that does not exit.
    """
    holder = await _wait_for_holder(ref, folder)
    if holder is None:
        return
    _check_not_shared(ref, folder, holder)
    # The first signal stops gracefully, the second forces a stop, the third kills without any cleanup.
    for send_signal, seconds in (
        (signal_stop, _FIRST_STOP_TIMEOUT_SECONDS),
        (signal_stop, _STOP_TIMEOUT_SECONDS),
        (kill_runner, _STOP_TIMEOUT_SECONDS),
    ):
        send_signal(holder.pid)
        if await _wait_until_unlocked(folder, seconds):
            return
    raise Unavailable(f"the runner of {ref} (process {holder.pid}) does not exit: kill it, then try again")


def _check_not_shared(ref: JobRef, folder: RunDirectory, holder: LockHolder) -> None:
    """Raise Conflict if the runner is a `kubealign run` of several jobs that runs another job now."""
    status = read_status(folder.status)
    current = status is not None and status.runner == holder.pid and status.phase is Phase.RUNNING
    if not holder.runs_one_job and not current:
        raise Conflict(
            f"{ref} is one of several jobs of a kubealign run (process {holder.pid}), which is running "
            "another one: stop that command, or wait until this job runs"
        )


async def _wait_for_holder(ref: JobRef, folder: RunDirectory) -> LockHolder | None:
    """Return the holder of the job's lock, waiting shortly for a new runner to write its process id."""
    deadline = time.monotonic() + _HOLDER_TIMEOUT_SECONDS
    while (holder := folder.lock().read_holder()) is not None and holder.pid == 0:
        if time.monotonic() > deadline:
            raise Unavailable(
                f"the runner of {ref} has not written its process id for {_HOLDER_TIMEOUT_SECONDS:g} s: "
                "try again"
            )
        await asyncio.sleep(_POLL_SECONDS)
    return holder


async def _wait_until_unlocked(folder: RunDirectory, seconds: float) -> bool:
    """Return True once the job's lock is free, False after a timeout. Releasing a lock triggers no event."""
    deadline = time.monotonic() + seconds
    while folder.lock().read_holder() is not None:
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(_POLL_SECONDS)
    return True
