"""Where to go on: with what the living ranks already did, else from the last commit, else from the start."""

import asyncio
import logging

from kubealign_services.checkpoints.store import Commit, CommitStore
from kubealign_services.driver.state import JobState
from kubealign_services.driver.training_client import TrainingClient

log = logging.getLogger(__name__)


async def resume(store: CommitStore, members: list[TrainingClient], first: Commit | None = None) -> JobState:
    """The state that trainer and critic (`members`) stand at, and that the job goes on from. first: another
    run's commit that this job begins with; None: the job's first weights.

    A driver that died alone finds both at the same step with its own state in their keeping, and nothing is
    done twice. Otherwise all of them take the last commit, or what the job begins with.
    """
    found = [await member.describe() for member in members]
    if (
        all(state.loaded and state.driver_state for state in found)
        and len({state.driver_state for state in found}) == 1
    ):
        state = JobState.model_validate_json(found[0].driver_state)
        if all(member.step == state.step for member in found):
            log.info(
                "trainer and critic are alive and agree: going on without a rollback",
                extra={"step": state.step},
            )
            return state
    # Every file of it is read: not on the event loop.
    commit = await asyncio.to_thread(store.newest) or first
    state = JobState() if commit is None else JobState.model_validate(commit.manifest.driver_state)
    for member in members:
        await member.load(state, None if commit is None else commit.path / member.role)
    log.info(
        "trainer and critic loaded",
        extra={"step": state.step, "commit": str(commit.path) if commit else "none"},
    )
    return state
