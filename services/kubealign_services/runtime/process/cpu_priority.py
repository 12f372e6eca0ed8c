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
_AUTOGROUP = Path("/proc/self/autogroup")
_RETRY_SECONDS, _ATTEMPTS = 0.15, 40


def lower_priority() -> None:
    """Lower the priority of the calling thread and of all threads and processes that it starts."""
    os.nice(max(0, NICE - os.nice(0)))


async def lower_session_priority() -> None:
    """Lower the priority of this process's session, where the kernel schedules by session.

    Errors are ignored.
    """
    for _ in range(_ATTEMPTS):
        try:
            _write_autogroup()
        except BlockingIOError:
            await asyncio.sleep(_RETRY_SECONDS)
        except OSError as error:
            log.debug("the kernel does not schedule by session", extra={"cause": str(error)})
            return
        else:
            return
    log.debug("the session's priority could not be lowered", extra={"trials": _ATTEMPTS})


def _write_autogroup() -> None:
    _AUTOGROUP.write_text(str(NICE))
