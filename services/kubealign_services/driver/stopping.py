"""Being told to stop: what was done since the last commit is committed, if it can be proven in time."""

import logging

from kubealign_services.driver.failures import Stopping
from kubealign_services.driver.grace import Grace
from kubealign_services.driver.run import Run
from kubealign_services.driver.watched import unless
from kubealign_services.refit.broadcast import RefitFailed

log = logging.getLogger(__name__)


async def told_to_stop(run: Run, grace: Grace) -> None:
    """Wait to be told to stop, and then for the end of what is not broken off. Raises Stopping."""
    await grace.stop.wait()
    async with run.undivided:
        raise Stopping


async def save_in_time(run: Run, grace: Grace) -> None:
    """Commit the run's state, unless a commit holds it. Left uncommitted when its weights are not proven, or
    the commit not made, before the grace period is over. Raises as `Run.commit` does."""
    if run.commits.holds(run.state):
        return
    cause = "the grace period was over before its weights were proven and the commit made"
    try:
        await unless(run.commit(run.state), grace.over())
        return
    except Stopping:
        pass
    except RefitFailed as error:
        cause = str(error)
    log.warning(
        "stopped at an earlier commit than the last step", extra={"step": run.state.step, "cause": cause}
    )
