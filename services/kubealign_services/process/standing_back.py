"""Lowers this process's CPU priority (nice and autogroup)."""

import asyncio
import logging
import os
from pathlib import Path

log = logging.getLogger(__name__)

#: Nice value (19 is the lowest priority): the process gets a third of the time of a normal process on the
#: same core. A higher value would starve a job on a busy machine.
NICE = 5
# Linux may divide the cores among sessions before processes (sched(7), "The autogroup feature"), and
# accepts at most ten changes a second from a session.
_SESSION = Path("/proc/self/autogroup")
_AGAIN_SECONDS, _TRIALS = 0.15, 40


def stand_back() -> None:
    """Lower the priority of the calling thread and of all threads and processes that it starts from now on.
    """
    os.nice(max(0, NICE - os.nice(0)))


async def session_stands_back() -> None:
    """Lower the priority of this process's session, where the kernel schedules by session. Errors are
    ignored.
    """
    for _ in range(_TRIALS):
        try:
            _change_share()
        except BlockingIOError:
            await asyncio.sleep(_AGAIN_SECONDS)
        except OSError as error:
            log.debug("the kernel does not schedule by session", extra={"cause": str(error)})
            return
        else:
            return
    log.debug("the session's priority could not be lowered", extra={"trials": _TRIALS})


def _change_share() -> None:
    _SESSION.write_text(str(NICE))
