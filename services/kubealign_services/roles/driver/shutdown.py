"""Shutdown of the driver within its grace period.

A step that cannot be verified and saved in that time is dropped; the last checkpoint remains valid.
"""

import asyncio
import logging

from kubealign_services.roles.driver.cancellation import run_until_any
from kubealign_services.roles.driver.errors import ShutdownRequested
from kubealign_services.roles.driver.training_run import TrainingRun
from kubealign_services.weights.announce.coordinator import RefitFailed

log = logging.getLogger(__name__)

# Part of the grace period that is reserved to close the message bus, the server and the logs after the last
# checkpoint.
_CLOSING_FRACTION = 0.25
_CLOSING_SECONDS = 10.0


class ShutdownDeadline:
    """Deadline of a graceful shutdown.

    Args:
        stop: Set when the process is asked to stop.
        seconds: Grace period of the process, after which it is killed.
    """

    def __init__(self, stop: asyncio.Event, seconds: float) -> None:
        self.stop = stop
        self._seconds = seconds - min(_CLOSING_SECONDS, seconds * _CLOSING_FRACTION)
        self._expires_at: float | None = None

    async def wait_for_request(self) -> None:
        """Wait for a shutdown request. Raises ShutdownRequested."""
        await self.stop.wait()
        raise ShutdownRequested

    async def wait_for_expiry(self) -> None:
        """Sleep until the shutdown deadline. Raises ShutdownRequested."""
        await self.stop.wait()
        now = asyncio.get_running_loop().time()
        if self._expires_at is None:
            self._expires_at = now + self._seconds
        await asyncio.sleep(self._expires_at - now)
        raise ShutdownRequested


async def wait_for_shutdown(run: TrainingRun, deadline: ShutdownDeadline) -> None:
    """Wait for a shutdown request, then for any TrainStep or checkpoint in progress.

    Raises ShutdownRequested.
    """
    await deadline.stop.wait()
    async with run.critical_section:
        raise ShutdownRequested


async def checkpoint_before_deadline(run: TrainingRun, deadline: ShutdownDeadline) -> None:
    """Save a checkpoint of the run's state unless one exists.

    Gives up if the weights are not verified, or the checkpoint not written, before the grace period ends.
    Raises as `TrainingRun.save_checkpoint` does.
    """
    if run.checkpoints.is_saved(run.state):
        return
    cause = "the grace period ended before the weights were verified and the checkpoint was saved"
    try:
        await run_until_any(run.save_checkpoint(run.state), deadline.wait_for_expiry())
        return
    except ShutdownRequested:
        pass
    except RefitFailed as error:
        cause = str(error)
    log.warning(
        "stopped at a checkpoint before the last step", extra={"step": run.state.step, "cause": cause}
    )
