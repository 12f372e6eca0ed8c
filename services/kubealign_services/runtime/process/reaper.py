"""Processes that adopt orphans: the init process (PID 1) of a container, and the supervisor of a function
that may leave processes behind.

The kernel re-parents orphans to the first process, which must wait for them or they stay zombies. It also
drops signals that the first process does not handle, so a SIGTERM during the imports would be lost.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from types import FrameType

from kubealign.local.processes.parent_death import adopt_orphans, die_with_parent
from kubealign_services.runtime.process.child_pids import list_child_pids

_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_KILL_SECONDS = 1.0
_POLL_SECONDS = 0.005


def run_with_reaper(work: Callable[[], int]) -> int:
    """Run `work` in a child process, forward signals to it, and reap orphans until it ends.

    Returns the child's exit code; 128 + the signal's number when a signal ended it. Must be called before
    any thread is started.
    """
    # Blocked until the child and the handlers exist.
    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
        return work()

    def forward(number: int, frame: FrameType | None) -> None:
        # The child may have ended in the meantime.
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
    return _reap_until_ended(child)


def run_and_kill_descendants(work: Callable[[], int]) -> int:
    """Run `work` in a child process; when that ends, or this process receives SIGTERM, kill all descendants.

    They include daemons in sessions of their own: they are adopted when their parents end. The child is
    killed if this process is. Returns as `run_with_reaper`. Must be called before any thread is started.
    """
    adopt_orphans()
    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
    supervisor = os.getpid()
    child = os.fork()
    if child == 0:
        die_with_parent(supervisor)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
        return work()

    def terminate(number: int, frame: FrameType | None) -> None:
        _kill_descendants()
        os._exit(128 + number)

    signal.signal(signal.SIGTERM, terminate)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
    code = _reap_until_ended(child)
    _kill_descendants()
    return code


def _reap_until_ended(child: int) -> int:
    """Wait for children until this one ends; return its exit code, 128 + the signal's number for a signal."""
    while True:
        ended, status = os.wait()
        if ended == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _kill_descendants() -> None:
    """Kill all descendants until none is left, at most for _KILL_SECONDS: one in an uninterruptible wait
    cannot be killed.

    Orphans of killed processes appear as children of this process, so every round may find new ones.
    """
    deadline = time.monotonic() + _KILL_SECONDS
    while (pids := _list_descendants(os.getpid())) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        # The kernel gives no event for the end of a process that is not yet a child.
        time.sleep(_POLL_SECONDS)


def _list_descendants(pid: int) -> list[int]:
    children = list_child_pids(pid)
    return [*children, *(descendant for child in children for descendant in _list_descendants(child))]
