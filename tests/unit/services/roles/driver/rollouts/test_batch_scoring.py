"""Scores that are requested once the batch is complete, over a bus with real score workers."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
import torch

from kubealign.v1 import rollout_pb2, scoring_pb2
from kubealign_services.batch.codec import encode
from kubealign_services.batch.packed import pack
from kubealign_services.data.prepared import PreparedRow
from kubealign_services.messaging.memory import MemoryBus
from kubealign_services.roles.driver.rollouts.batch_scoring import BatchScoring
from kubealign_services.roles.driver.rollouts.collector import RolloutCollector, create_group
from kubealign_services.roles.driver.rollouts.group_buffer import GroupBuffer, GroupBufferOptions, GroupPlan
from kubealign_services.roles.driver.rollouts.group_tracker import RolloutGroup
from kubealign_services.roles.driver.rollouts.prompt_source import ListPrompts
from kubealign_services.scoring.purposes import requested_purpose
from kubealign_services.scoring.worker import ScoreWorker, empty_score

pytestmark = pytest.mark.timeout(30)

SOURCES = ("judge", "reference")
ROWS = [PreparedRow(row=i, prompt_tokens=[i + 1], prompt_text=str(i)) for i in range(4)]
#: (event, source or "", group).
Event = tuple[str, str, str]


def sample_of(item: rollout_pb2.WorkItem, sample: int) -> rollout_pb2.Rollout:
    sequence = pack([[item.attempt + 1, sample]], ["?"])
    sequence.token_columns |= {
        "loss_mask": torch.tensor([0, 1], dtype=torch.uint8),
        "weight_version": torch.zeros(2, dtype=torch.int32),
    }
    return rollout_pb2.Rollout(
        fence=item.fence,
        group_id=item.group_id,
        attempt=item.attempt,
        sample=sample,
        sequence=encode(sequence),
        purpose=item.purpose,
        finish_reason=rollout_pb2.FINISH_REASON_STOP,
    )


class Scorer:
    """Scores rollouts. `before` is awaited with the first call. fails: attempts of a group that fail."""

    def __init__(self, source: str, events: list[Event]) -> None:
        self.source, self._events = source, events
        self.called = asyncio.Event()
        self.before: asyncio.Event | None = None
        self.fails: set[tuple[str, int]] = set()

    async def __call__(self, rollouts: Sequence[rollout_pb2.Rollout]) -> list[scoring_pb2.Score]:
        self.called.set()
        if self.before is not None:
            await self.before.wait()
        # Time for another scorer to begin, if it may.
        for _ in range(50):
            await asyncio.sleep(0)
        scores = []
        for rollout in rollouts:
            self._events.append(("scored", self.source, rollout.group_id))
            score = empty_score(rollout, self.source, "w")
            score.reward = 1.0
            if (rollout.group_id, rollout.attempt) in self.fails:
                score.error = "timeout"
            scores.append(score)
        return scores


class Site:
    """A driver's group buffer, a rollout worker and both scorers. generate: returns True if a work item is
    generated."""

    def __init__(self, collector: RolloutCollector, bus: MemoryBus, timeout: float, parallel: bool) -> None:
        self.events: list[Event] = []
        self.scorers = {source: Scorer(source, self.events) for source in SOURCES}
        self.generate: Callable[[rollout_pb2.WorkItem], bool] = lambda item: True
        self._bus = bus
        plan = GroupPlan(
            job_seed=1,
            prompts_per_step=2,
            samples_per_prompt=2,
            sampling=rollout_pb2.Sampling(max_tokens=4, temperature=1.0, top_p=1.0),
            group_timeout=timeout,
            group_retries=1,
            max_failed_groups=0,
        )
        scoring = BatchScoring(collector, SOURCES, parallel)
        options = GroupBufferOptions(batch_scoring=scoring)
        self.buffer = GroupBuffer(collector, ListPrompts(ROWS, "0"), plan, "train", SOURCES, options)

    async def work(self) -> None:
        while True:
            for delivery in await self._bus.pull("work", "rollout", 8, 5.0):
                item = rollout_pb2.WorkItem.FromString(delivery.data)
                for sample in range(item.samples if self.generate(item) else 0):
                    self.events.append(("generated", "", item.group_id))
                    name = f"{item.group_id}:{item.attempt}:{sample}"
                    await self._bus.publish("rollouts", sample_of(item, sample).SerializeToString(), name)
                await delivery.ack()


@asynccontextmanager
async def site(parallel: bool, timeout: float = 20.0) -> AsyncIterator[Site]:
    bus = MemoryBus()
    async with RolloutCollector(bus, 1, asyncio.Event(), lambda text: None) as collector:
        new_site = Site(collector, bus.new_connection(), timeout, parallel)
        workers = [
            ScoreWorker(bus.new_connection(), name, frozenset({requested_purpose("train", name)}), scorer)
            for name, scorer in new_site.scorers.items()
        ]
        tasks = [asyncio.create_task(each) for each in (new_site.work(), *(w.run() for w in workers))]
        try:
            yield new_site
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def test_scorers_score_one_after_another_once_the_batch_is_complete() -> None:
    async with site(parallel=False) as stage:
        for expected in (["0/0", "0/1"], ["0/2", "0/3"]):
            stage.events.clear()
            groups = await stage.buffer.take_batch(version=0)
            assert [group.group_id for group in groups] == expected
            assert all(group.is_complete(SOURCES) for group in groups)
            kinds = [(event, source) for event, source, _ in stage.events]
            assert (
                kinds == [("generated", "")] * 4 + [("scored", "judge")] * 4 + [("scored", "reference")] * 4
            )


async def test_scorers_score_a_complete_batch_at_the_same_time() -> None:
    async with site(parallel=True) as stage:
        # The first scorer returns once the second one has been called.
        stage.scorers["judge"].before = stage.scorers["reference"].called
        await stage.buffer.take_batch(version=0)
        assert [event for event, _, _ in stage.events] == ["generated"] * 4 + ["scored"] * 8


async def test_a_group_whose_score_failed_is_generated_and_scored_again() -> None:
    async with site(parallel=False) as stage:
        stage.scorers["reference"].fails = {("0/1", 0)}
        first, second = await stage.buffer.take_batch(version=0)
        assert (first.attempt, second.attempt) == (0, 1)
        assert first.is_complete(SOURCES) and second.is_complete(SOURCES)
        assert stage.events.count(("scored", "judge", "0/1")) == 4
        assert stage.events.count(("scored", "judge", "0/0")) == 2, (
            "a group that was scored is not scored again"
        )


async def test_a_group_that_waits_for_the_batch_is_not_overdue() -> None:
    async with site(parallel=True, timeout=1.0) as stage:
        stage.generate = lambda item: item.group_id == "0/0" or item.attempt > 0
        first, second = await stage.buffer.take_batch(version=0)
        assert (first.attempt, second.attempt) == (0, 1)


def finished(group_id: str) -> RolloutGroup:
    group = create_group(group_id, 1, 0, 60.0)
    item = rollout_pb2.WorkItem(fence=1, group_id=group_id, samples=1, purpose="train")
    group.rollouts[0] = sample_of(item, 0)
    group.generated_at = 1.0
    return group


async def purposes(bus: MemoryBus, consumer: str) -> list[str]:
    """Return the purposes of the rollouts on the bus that this consumer has not pulled yet."""
    pulled = await bus.pull("rollouts", consumer, 8, 0.01)
    return [rollout_pb2.Rollout.FromString(each.data).purpose for each in pulled]


async def test_scores_are_due_once_all_groups_are_generated() -> None:
    bus = MemoryBus()
    async with RolloutCollector(bus.new_connection(), 1, asyncio.Event(), lambda text: None) as collector:
        scoring, group, late = BatchScoring(collector, SOURCES, False), finished("0/0"), finished("0/1")
        late.generated_at = None
        assert await scoring.request_due([group, late]) == []
        assert await purposes(bus, "test") == []
        late.generated_at = 2.0
        assert await scoring.request_due([group, late]) == [group, late]
        assert await scoring.request_due([group, late]) == [], "requested once"
        assert await purposes(bus, "test") == ["train@judge"] * 2
        for each in (group, late):
            each.scores[0, each.rollouts[0].sequence.digest, "judge"] = scoring_pb2.Score(reward=1.0)
        assert await scoring.request_due([group, late]) == [group, late]
        assert await purposes(bus, "test") == ["train@reference"] * 2


async def test_requests_that_the_bus_has_lost_are_published_again() -> None:
    bus = MemoryBus()
    async with RolloutCollector(bus.new_connection(), 1, asyncio.Event(), lambda text: None) as collector:
        scoring, group = BatchScoring(collector, SOURCES, parallel=False), finished("0/0")
        assert scoring.is_waiting(group)
        await scoring.request_due([group])
        assert not scoring.is_waiting(group), "a score is outstanding"
        await bus.simulate_data_loss()
        await scoring.republish(group)
        assert await purposes(bus, "judge") == ["train@judge"]
