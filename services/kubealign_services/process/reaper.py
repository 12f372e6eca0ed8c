"""The first process of a container, which has two duties that no other has.

The kernel hands it the orphans of all others, and whoever does not wait for them keeps them as zombies; and
it drops signals that the first process does not handle, so a SIGTERM during the imports would be lost.
"""

import contextlib
import os
import signal
from collections.abc import Callable
from types import FrameType

_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def run_reaped(work: Callable[[], int]) -> int:
    """Run `work` in a child, hand on the signals that come, and wait for orphans until the child ends.

    Returns the child's exit code; 128 + the signal's number where one ended it. Call it before any thread is
    started."""
    # Held back until somebody is there to take them.
    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
        return work()

    def forward(number: int, frame: FrameType | None) -> None:
        # It may have ended a moment ago.
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
