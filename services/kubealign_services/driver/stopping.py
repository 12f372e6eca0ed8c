"""Shutdown of the driver: saves a checkpoint of the finished steps if their weights can be verified in time.
"""

import logging

from kubealign_services.driver.failures import Stopping
from kubealign_services.driver.grace import Grace
from kubealign_services.driver.run import Run
from kubealign_services.driver.watched import unless
from kubealign_services.refit.broadcast import RefitFailed

log = logging.getLogger(__name__)


async def told_to_stop(run: Run, grace: Grace) -> None:
    """Wait for a shutdown request, then for any TrainStep or checkpoint in progress. Raises
    ShutdownRequested.
    """
    await grace.stop.wait()
    async with run.undivided:
        raise Stopping


async def save_in_time(run: Run, grace: Grace) -> None:
    """Save a checkpoint of the run's state unless one exists.

    Gives up if the weights are not verified, or the checkpoint not written, before the grace period ends.
    Raises as `TrainingRun.save_checkpoint` does.
    """
    if run.commits.holds(run.state):
        return
    cause = "the grace period ended before the weights were verified and the checkpoint was saved"
    try:
        await unless(run.commit(run.state), grace.over())
        return
    except Stopping:
        pass
    except RefitFailed as error:
        cause = str(error)
    log.warning(
        "stopped at a checkpoint before the last step", extra={"step": run.state.step, "cause": cause}
    )
