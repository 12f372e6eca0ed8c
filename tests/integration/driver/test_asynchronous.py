"""Asynchronous job: waits of the trainer and the rollout workers for each other."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kubealign.spec.job import AlignmentJob
from kubealign_services.weights.announce.coordinator import RefitFailed
from support.tiny_jobs import online_job

pytestmark = pytest.mark.timeout(30)


def asynchronous(stage: Any, staleness: int) -> None:
    """Give the stage a job with two prompts per step and this staleness."""
    algorithm = {"rloo": {"promptsPerStep": 2, "samplesPerPrompt": 2, "maxStaleness": staleness}}
    algorithm["rloo"]["kl"] = {"fixed": {"coefficient": 0.0}}
    folder = stage.run_dir.parent
    stage.job = AlignmentJob.model_validate(
        online_job(folder, "stopped", algorithm, maxSteps=100, checkpoint={"everySteps": 50})
    )


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not reached():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(("staleness", "steps"), [(0, 1), (1, 2), (2, 2)])
async def test_the_trainer_goes_on_while_the_workers_take_a_version(
    stage: Any, staleness: int, steps: int
) -> None:
    """Check that the trainer runs ahead by one step, if the staleness allows it: the next version waits,
    since two versions are not published at once."""
    asynchronous(stage, staleness)
    stage.worker.refitting.at = 1
    driving = stage.begin()
    await stage.worker.refitting.held.wait()
    await until(lambda: stage.trainer.state.step == steps)
    await asyncio.sleep(0.3)
    assert stage.trainer.state.step == steps and stage.trainer.published == [(0, 0), (1, 1)]
    stage.worker.refitting.let_go.set()
    await until(lambda: stage.reached >= steps + 3)
    assert not driving.done()
    # Each snapshot holds the weights of its version.
    assert all(version == step for version, step in stage.trainer.published)
    assert [version for version, _ in stage.trainer.published][:4] == [0, 1, 2, 3]


async def test_the_trainer_waits_until_its_snapshot_is_made(stage: Any) -> None:
    asynchronous(stage, 2)
    stage.trainer.publishing.at = 1
    stage.begin()
    await stage.trainer.publishing.held.wait()
    await asyncio.sleep(0.3)
    assert stage.trainer.state.step == 1
    stage.trainer.publishing.let_go.set()
    await until(lambda: stage.trainer.state.step >= 3)


async def test_a_lost_quorum_is_tried_again_with_the_same_snapshot(stage: Any) -> None:
    """Check that the snapshot is reused, since the trainer has newer weights by then, and that it is sent in
    full, since the delta may be the cause of the failure."""
    asynchronous(stage, 2)
    stage.worker.refuses, stage.worker.refitting.at = {1}, 1
    stage.begin()
    await stage.worker.refitting.held.wait()
    await until(lambda: stage.trainer.state.step == 2)
    stage.worker.refitting.let_go.set()
    await until(lambda: stage.reached >= 4)
    first, again = (each for each in stage.worker.announced if each.weights.version == 1)
    assert first.weights == again.weights and not again.HasField("base")
    assert [version for version, _ in stage.trainer.published][:3] == [0, 1, 2]


async def test_a_quorum_lost_twice_ends_the_attempt_whatever_the_trainer_does(stage: Any) -> None:
    asynchronous(stage, 2)
    stage.trainer.training.at = 2
    stage.worker.refitting.at = 1
    driving = stage.begin()
    await stage.trainer.training.held.wait()

    async def refuse() -> None:
        while True:
            stage.worker.refuses.add(1)
            await asyncio.sleep(0)

    refusing = asyncio.create_task(refuse())
    stage.worker.refitting.let_go.set()
    with pytest.raises(RefitFailed, match=r"version 1.*a checksum does not match.*Second try"):
        await asyncio.wait_for(driving, 10)
    refusing.cancel()
