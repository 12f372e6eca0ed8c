"""Calls of roles at the same time or one after another, and the order of training and refit."""

import asyncio
import inspect
import threading
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from kubealign_services.batch.packed import Batch, pack
from kubealign_services.roles.driver.concurrency import run_calls, run_in_thread
from kubealign_services.roles.driver.metrics.report import StepRecord
from kubealign_services.roles.driver.state import JobState
from kubealign_services.roles.driver.trainer_client import ColocatedScorer, run_train_step

pytestmark = pytest.mark.timeout(30)


class Role:
    """Trainer or critic that records the begin and the end of each call. `waits_for`: events that a call
    awaits before it ends.
    """

    def __init__(self, name: str, events: list[str]) -> None:
        self.name, self._events = name, events
        self.begun = asyncio.Event()
        self.waits_for: list[asyncio.Event] = []

    async def train_step(
        self, batch: Batch, after: JobState, update: bool, measured: Mapping[str, float]
    ) -> dict[str, float]:
        await self._run("train")
        return {"loss": 1.0}

    async def scores(self, batch: Batch, names: list[str]) -> dict[str, torch.Tensor]:
        await self._run("score")
        return {name: torch.zeros(len(batch)) for name in names}

    async def reference_logprobs(self, batch: Batch) -> torch.Tensor:
        await self._run("score")
        return torch.zeros(len(batch.tokens))

    async def _run(self, call: str) -> None:
        self._events.append(f"{self.name} begins to {call}")
        self.begun.set()
        for event in self.waits_for:
            await event.wait()
        await asyncio.sleep(0)
        self._events.append(f"{self.name} ends to {call}")


BATCH = pack([[1, 2], [3]], ["0/0#0", "0/1#0"])


async def train(trainer: Role, critic: Role, events: list[str], parallel: bool, refit: asyncio.Event) -> None:
    def publish() -> None:
        events.append("refit")
        refit.set()

    clients: Any = trainer, critic
    await run_train_step(*clients, BATCH, JobState(step=1), StepRecord(1), 0, publish, parallel)


async def test_trainer_critic_and_refit_follow_one_another() -> None:
    events: list[str] = []
    await train(Role("trainer", events), Role("critic", events), events, False, asyncio.Event())
    assert events == [
        "trainer begins to train",
        "trainer ends to train",
        "critic begins to train",
        "critic ends to train",
        "refit",
    ]


async def test_critic_trains_beside_trainer_and_refit() -> None:
    events, refit = list[str](), asyncio.Event()
    trainer, critic = Role("trainer", events), Role("critic", events)
    trainer.waits_for, critic.waits_for = [critic.begun], [refit]
    await train(trainer, critic, events, True, refit)
    assert events[-2:] == ["refit", "critic ends to train"]


@pytest.mark.parametrize("parallel", [True, False])
async def test_models_of_critic_and_trainer_score_at_the_same_time_or_in_turn(parallel: bool) -> None:
    events: list[str] = []
    trainer, critic = Role("trainer", events), Role("critic", events)
    client: Any = critic
    if parallel:
        critic.waits_for = [trainer.begun]
    batch = pack([[1, 2], [3]], ["0/0#0", "0/1#0"])
    scorer = ColocatedScorer(client, ["judge"], trainer.reference_logprobs, parallel=parallel)
    await scorer.score(batch, StepRecord(1))
    in_turn = [
        "critic begins to score",
        "critic ends to score",
        "trainer begins to score",
        "trainer ends to score",
    ]
    assert (events == in_turn) is not parallel
    assert {"reward.judge"} == set(batch.sequence_columns) and "reference_logprobs" in batch.token_columns


@pytest.mark.parametrize("parallel", [True, False])
async def test_results_come_in_the_order_of_the_calls_and_the_first_error_is_raised(parallel: bool) -> None:
    async def call(number: int) -> int:
        if number < 0:
            raise ValueError(f"call {number}")
        return number

    assert await run_calls(call(1), call(2), parallel=parallel) == [1, 2]
    calls = [call(1), call(-1), call(-2)]
    with pytest.raises(ValueError, match="call -1"):
        await run_calls(*calls, parallel=parallel)
    await asyncio.sleep(0)
    assert all(inspect.getcoroutinestate(each) == inspect.CORO_CLOSED for each in calls)


async def test_cancelled_call_in_a_thread_ends_first() -> None:
    begun, resumed = threading.Event(), threading.Event()
    ended = False

    def call() -> None:
        nonlocal ended
        begun.set()
        assert resumed.wait(30)
        ended = True

    task = asyncio.create_task(run_in_thread(call))
    assert await asyncio.to_thread(begun.wait, 30)
    task.cancel()
    assert not (await asyncio.wait({task}, timeout=0.05))[0]
    resumed.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended
