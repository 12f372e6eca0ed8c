"""Lifecycle of the job's experiment trackers in the driver."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kubealign_services.roles.driver.errors import ShutdownRequested
from kubealign_services.runtime.plugins import PluginError
from kubealign_services.runtime.process.context import ProcessContext
from kubealign_services.runtime.process.failures import PermanentFailure
from kubealign_services.telemetry.trackers.background import BackgroundTracker
from kubealign_services.telemetry.trackers.contract import RunOutcome, TrackerNotInstalled
from kubealign_services.telemetry.trackers.factory import open_trackers

#: Time to send pending metrics at the end of a job, and at a shutdown within the driver's grace period.
_END_TIMEOUT_SECONDS = 30.0
_SHUTDOWN_TIMEOUT_SECONDS, _SHUTDOWN_FRACTION = 3.0, 0.1

log = logging.getLogger(__name__)


@asynccontextmanager
async def run_trackers(context: ProcessContext) -> AsyncIterator[list[BackgroundTracker]]:
    """Open the trackers, and end them when the block ends.

    Raises:
        PermanentFailure: A tracker's library or plugin is missing.
    """
    try:
        trackers = open_trackers(context.job, context.settings.run_dir)
    except (TrackerNotInstalled, PluginError) as error:
        raise PermanentFailure(str(error)) from error
    ending = RunOutcome.FAILED
    try:
        yield trackers
        ending = RunOutcome.SUCCEEDED
    except ShutdownRequested:
        ending = RunOutcome.STOPPED
        raise
    finally:
        seconds = _END_TIMEOUT_SECONDS
        if context.stop.is_set():
            grace = context.job.spec.lifecycle.grace_period_seconds
            seconds = min(_SHUTDOWN_TIMEOUT_SECONDS, _SHUTDOWN_FRACTION * grace)
        await _end_trackers(trackers, ending, seconds, context)


async def _end_trackers(
    trackers: list[BackgroundTracker], ending: RunOutcome, seconds: float, context: ProcessContext
) -> None:
    """End all trackers within `seconds`."""
    for tracker in trackers:
        tracker.request_close(ending)
    deadline = time.monotonic() + seconds
    for tracker in trackers:
        remaining = max(0.0, deadline - time.monotonic())
        if not await asyncio.to_thread(tracker.wait_closed, remaining):
            context.abandoned_thread = f"the tracker {tracker.name}"
            log.warning(
                "a tracker did not end in time; its last metrics may be missing",
                extra={"tracker": tracker.name, "seconds": seconds},
            )
