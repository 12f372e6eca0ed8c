"""Init process (PID 1) of a container: reaps orphans and forwards signals.

The kernel re-parents orphans to the first process, which must wait for them or they stay zombies. It also
drops signals that the first process does not handle, so a SIGTERM during the imports would be lost.
"""

import contextlib
import os
import signal
from collections.abc import Callable
from types import FrameType

_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


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
    while True:
        ended, status = os.wait()
        if ended == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
