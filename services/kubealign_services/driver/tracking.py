"""Lifecycle of the job's experiment trackers in the driver."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kubealign_services.driver.failures import Stopping
from kubealign_services.plugins import PluginError
from kubealign_services.process.context import Context
from kubealign_services.process.failures import PermanentFailure
from kubealign_services.trackers.background import BackgroundTracker
from kubealign_services.trackers.contract import Ending, NotInstalled
from kubealign_services.trackers.opened import opened

#: Time to send pending metrics at the end of a job, and at a shutdown within the driver's grace period.
_ENDING_SECONDS = 30.0
_STOPPING_SECONDS, _STOPPING_SHARE = 3.0, 0.1

log = logging.getLogger(__name__)


@asynccontextmanager
async def tracked(context: Context) -> AsyncIterator[list[BackgroundTracker]]:
    """Open the trackers, and end them when the block ends.

    Raises:
        PermanentFailure: A tracker's library or plugin is missing.
    """
    try:
        trackers = opened(context.job, context.settings.run_dir)
    except (NotInstalled, PluginError) as error:
        raise PermanentFailure(str(error)) from error
    ending = Ending.FAILED
    try:
        yield trackers
        ending = Ending.SUCCEEDED
    except Stopping:
        ending = Ending.STOPPED
        raise
    finally:
        seconds = _ENDING_SECONDS
        if context.stop.is_set():
            grace = context.job.spec.lifecycle.grace_period_seconds
            seconds = min(_STOPPING_SECONDS, _STOPPING_SHARE * grace)
        await _end(trackers, ending, seconds, context)


async def _end(trackers: list[BackgroundTracker], ending: Ending, seconds: float, context: Context) -> None:
    """End all trackers within `seconds`."""
    for tracker in trackers:
        tracker.end(ending)
    deadline = time.monotonic() + seconds
    for tracker in trackers:
        remaining = max(0.0, deadline - time.monotonic())
        if not await asyncio.to_thread(tracker.ended, remaining):
            context.left_behind = f"the tracker {tracker.name}"
            log.warning(
                "a tracker did not end in time; its last metrics may be missing",
                extra={"tracker": tracker.name, "seconds": seconds},
            )
