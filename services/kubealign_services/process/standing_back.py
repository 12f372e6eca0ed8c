"""A process that has what others leave of the machine's cores."""

import asyncio
import logging
import os
from pathlib import Path

log = logging.getLogger(__name__)

#: Of the scheduler's 19: with it a process has a third of what another gets that wants the same core. More
#: would leave a job next to nothing beside whatever else the machine does.
NICE = 5
# Linux may share the cores among sessions before it does so among processes (sched(7), "The autogroup
# feature"), and lets a session change its share ten times a second at most.
_SESSION = Path("/proc/self/autogroup")
_AGAIN_SECONDS, _TRIALS = 0.15, 40


def stand_back() -> None:
    """Of the calling thread, and of all that it makes from now on."""
    os.nice(max(0, NICE - os.nice(0)))


async def session_stands_back() -> None:
    """Of this process's session, where sessions have shares. What the system does not allow is left alone."""
    for _ in range(_TRIALS):
        try:
            _change_share()
        except BlockingIOError:
            await asyncio.sleep(_AGAIN_SECONDS)
        except OSError as error:
            log.debug("sessions have no shares of the cores here", extra={"cause": str(error)})
            return
        else:
            return
    log.debug("the session kept its share of the cores", extra={"trials": _TRIALS})


def _change_share() -> None:
    _SESSION.write_text(str(NICE))
