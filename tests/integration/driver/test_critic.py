"""Job with a critic: what the driver does while the critic still trains."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kubealign.spec.job import AlignmentJob
from kubealign_services.roles.driver.errors import UnrecoverableError
from support.tiny_jobs import FROM_CONFIG, online_job

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def stage_with_critic(stage: Any) -> Any:
    """Give the stage a PPO job with two prompts per step."""
    algorithm = {"ppo": {"promptsPerStep": 2, "samplesPerPrompt": 1, "kl": {"fixed": {"coefficient": 0.0}}}}
    document = online_job(
        stage.run_dir.parent, "stopped", algorithm, maxSteps=100, critic={"model": FROM_CONFIG}
    )
    stage.job = AlignmentJob.model_validate(document)
    return stage


async def test_workers_take_new_weights_while_the_critic_trains(stage_with_critic: Any) -> None:
    stage = stage_with_critic
    stage.critic.training.at, stage.worker.refitting.at = 2, 2
    driving = stage.begin()
    async with asyncio.timeout(15):
        await stage.critic.training.held.wait()
        await stage.worker.refitting.held.wait()
    assert stage.critic.state.step == 1 and stage.trainer.state.step == 2
    assert len(stage.history()) == 1, "a step is done when trainer and critic are"
    stage.critic.training.let_go.set()
    stage.worker.refitting.let_go.set()
    async with asyncio.timeout(15):
        while stage.reached < 4:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert not driving.done()
    assert [version for version, _ in stage.trainer.published][:4] == [0, 1, 2, 3]


async def test_failed_step_of_the_critic_is_not_done(stage_with_critic: Any) -> None:
    """Check that the workers' new weights do not make a step count that the critic has not finished."""
    stage = stage_with_critic
    stage.critic.diverges_at = 2
    with pytest.raises(UnrecoverableError, match="step 2: critic TrainStep: the critic's loss is not finite"):
        await asyncio.wait_for(stage.drive(), 15)
    assert len(stage.history()) == 1


async def test_calls_follow_one_another_without_overlap(stage: Any) -> None:
    """Check the order of a step's calls: values, old log-probabilities, trainer, critic, refit."""
    events: list[str] = []

    def recorder(name: str) -> Callable[[int], Awaitable[None]]:
        async def record(number: int) -> None:
            events.append(f"{name} {number} begins")
            for _ in range(20):  # time for another call to begin, if it may
                await asyncio.sleep(0)
            events.append(f"{name} {number} ends")

        return record

    # Two updates of a step need the old log-probabilities.
    algorithm = {
        "ppo": {
            "promptsPerStep": 2,
            "samplesPerPrompt": 1,
            "minibatchSequences": 1,
            "kl": {"fixed": {"coefficient": 0.0}},
        }
    }
    overlap = {"scoreOnArrival": False, "parallelScoring": False, "parallelTraining": False}
    document = online_job(
        stage.run_dir.parent, "stopped", algorithm, maxSteps=2, critic={"model": FROM_CONFIG}, overlap=overlap
    )
    stage.job = AlignmentJob.model_validate(document)
    stage.critic.forwarding, stage.trainer.forwarding = recorder("values"), recorder("logprobs")
    stage.trainer.training, stage.critic.training = recorder("trainer"), recorder("critic")
    stage.trainer.publishing = recorder("refit")
    await asyncio.wait_for(stage.drive(), 15)
    calls = [f"{call} {step}" for step in (1, 2) for call in ("values", "logprobs", "trainer", "critic")]
    expected = [f"{call} {edge}" for call in calls for edge in ("begins", "ends")]
    assert [event for event in events if not event.startswith("refit")] == expected
    # The scripted worker generates the next step's samples without waiting for the refit.
    for step in (1, 2):
        assert events.index(f"refit {step} begins") > events.index(f"critic {step} ends")
