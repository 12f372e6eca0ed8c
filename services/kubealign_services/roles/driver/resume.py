"""Restores the driver state: from living ranks, else from the last checkpoint, else from the start."""

import asyncio
import logging

from kubealign_services.checkpoints.store import StoredCheckpoint, CheckpointStore
from kubealign_services.roles.driver.state import JobState
from kubealign_services.roles.driver.trainer_client import TrainingClient

log = logging.getLogger(__name__)


async def restore_state(store: CheckpointStore, members: list[TrainingClient], initial_checkpoint: StoredCheckpoint | None = None) -> JobState:
    """Return the state from which the job continues, after trainer and critic hold it.

    A driver that died alone finds both roles at the same step with its own state, and nothing is repeated.
    Otherwise all roles load the last checkpoint or the initial weights.

    Args:
        members: Clients of trainer and critic.
        initial_checkpoint: Checkpoint of another run with which this job starts; None: the job's initial
            weights.
    """
    states = [await member.describe() for member in members]
    if (
        all(state.loaded and state.driver_state for state in states)
        and len({state.driver_state for state in states}) == 1
    ):
        state = JobState.model_validate_json(states[0].driver_state)
        if all(member.step == state.step for member in states):
            log.info(
                "trainer and critic agree on the state: continuing without a rollback",
                extra={"step": state.step},
            )
            return state
    # Reads every file of the checkpoint, so it must not run on the event loop.
    commit = await asyncio.to_thread(store.latest) or initial_checkpoint
    state = JobState() if commit is None else JobState.model_validate(commit.manifest.driver_state)
    for member in members:
        await member.load(state, None if commit is None else commit.path / member.role)
    log.info(
        "trainer and critic loaded",
        extra={"step": state.step, "commit": str(commit.path) if commit else "none"},
    )
    return state
