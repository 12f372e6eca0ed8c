"""Shutdown of the driver: saves a checkpoint of the finished steps if their weights can be verified in time.
"""

import logging

from kubealign_services.roles.driver.errors import ShutdownRequested
from kubealign_services.roles.driver.shutdown import ShutdownDeadline
from kubealign_services.roles.driver.training_run import TrainingRun
from kubealign_services.roles.driver.cancellation import run_until_any
from kubealign_services.weights.announce.coordinator import RefitFailed

log = logging.getLogger(__name__)


async def wait_for_shutdown(run: TrainingRun, deadline: ShutdownDeadline) -> None:
    """Wait for a shutdown request, then for any TrainStep or checkpoint in progress. Raises
    ShutdownRequested.
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
