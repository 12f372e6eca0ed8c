"""Shutdown of the driver: verified steps are saved in a checkpoint, unverified ones are not, and no wait
outlasts the grace period.

Checkpoints are due at every third step; the grace period is 8 seconds.
"""

import asyncio
from typing import Any

import pytest

from kubealign_services.checkpoints.fence import StaleFence, acquire_fence
from kubealign_services.roles.driver.errors import ShutdownRequested, UnrecoverableError

pytestmark = pytest.mark.timeout(20)


async def test_verified_steps_are_committed(stage: Any) -> None:
    stage.worker.generating.at = 4
    driving = stage.begin()
    await stage.worker.generating.held.wait()
    stage.stop.set()
    with pytest.raises(ShutdownRequested):
        await driving
    assert stage.committed == stage.reached == len(stage.history()) == 4


async def test_verification_of_the_last_step_is_awaited(stage: Any) -> None:
    """Check the wait for a verification that arrives after the stop request."""
    stage.worker.refitting.at = 4
    driving = stage.begin()
    await stage.worker.refitting.held.wait()
    stage.stop.set()
    await asyncio.sleep(0.5)
    assert not driving.done()
    assert stage.committed == 3
    stage.worker.refitting.let_go.set()
    with pytest.raises(ShutdownRequested):
        await driving
    assert stage.committed == stage.reached == 4


async def test_step_that_is_not_verified_in_time_is_not_committed(stage: Any) -> None:
    stage.worker.refitting.at = 4
    driving = stage.begin()
    await stage.worker.refitting.held.wait()
    stage.stop.set()
    with pytest.raises(ShutdownRequested):
        # The driver ends within the grace period, not at the refit's timeout of two minutes.
        await asyncio.wait_for(driving, 8)
    assert (stage.reached, stage.committed) == (4, 3)


async def test_weights_that_the_last_step_destroyed_are_not_committed(stage: Any) -> None:
    stage.trainer.destroyed = stage.trainer.publishing.at = 4
    driving = stage.begin()
    await stage.trainer.publishing.held.wait()
    stage.stop.set()
    await asyncio.sleep(0.2)
    stage.trainer.publishing.let_go.set()
    with pytest.raises(UnrecoverableError, match="weights of version 4 are destroyed; its batch is kept in"):
        await driving
    assert stage.committed == 3


async def test_driver_with_nothing_to_commit_ends_at_once(stage: Any) -> None:
    """Check the immediate end while a rollout worker does not take the first weights."""
    stage.worker.refitting.at = 0
    driving = stage.begin()
    await stage.worker.refitting.held.wait()
    stage.stop.set()
    with pytest.raises(ShutdownRequested):
        await asyncio.wait_for(driving, 3)
    assert stage.committed is None


async def test_a_step_under_way_is_not_broken_off(stage: Any) -> None:
    stage.trainer.training.at = 2
    driving = stage.begin()
    await stage.trainer.training.held.wait()
    stage.stop.set()
    await asyncio.sleep(0.3)
    assert not driving.done()
    stage.trainer.training.let_go.set()
    with pytest.raises(ShutdownRequested):
        await driving
    assert stage.committed == stage.reached == 2


async def test_a_step_that_outlasts_the_grace_period_is_given_up(stage: Any) -> None:
    """Check that earlier steps are not saved either, since no time is left."""
    stage.trainer.training.at = 5
    driving = stage.begin()
    await stage.trainer.training.held.wait()
    stage.stop.set()
    with pytest.raises(ShutdownRequested):
        await asyncio.wait_for(driving, 8)
    assert stage.committed == 3


async def test_commit_that_outlasts_the_grace_period_is_discarded(stage: Any) -> None:
    stage.worker.generating.at = stage.trainer.saving.at = 4
    driving = stage.begin()
    await stage.worker.generating.held.wait()
    stage.stop.set()
    with pytest.raises(ShutdownRequested):
        await asyncio.wait_for(driving, 8)
    assert stage.trainer.saving.held.is_set()
    assert stage.committed == 3


async def test_missing_trainer_is_not_awaited(stage: Any) -> None:
    """Check the immediate end without a trainer: its return may take five minutes, and no checkpoint is
    possible without it."""
    driving = asyncio.create_task(stage.drive_to_end("127.0.0.1:1"))
    async with asyncio.timeout(10):
        while not (stage.run_dir / "fences" / "1").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)
    assert not driving.done()
    stage.stop.set()
    with pytest.raises(ShutdownRequested):
        await asyncio.wait_for(driving, 3)


async def test_replaced_driver_ends_before_it_records_a_step(stage: Any) -> None:
    stage.worker.generating.at = 4
    driving = stage.begin()
    await stage.worker.generating.held.wait()
    assert acquire_fence(stage.run_dir, after=1) == 2
    stage.worker.generating.let_go.set()
    with pytest.raises(StaleFence, match="fence 1 has been replaced by 2"):
        await driving
    assert (stage.committed, len(stage.history())) == (3, 4)


async def test_a_driver_that_resumes_after_the_last_step_reports_it(stage: Any) -> None:
    stage.job = stage.job.model_copy(update={"spec": stage.job.spec.model_copy(update={"max_steps": 3})})
    await stage.drive()
    stage.fence = 2
    await stage.drive()
    assert stage.progress.step == stage.committed == 3
