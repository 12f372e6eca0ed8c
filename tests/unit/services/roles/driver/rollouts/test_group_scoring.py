"""Scores of all samples of a prompt in one request, over a bus with real score workers."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import torch

from kubealign.v1 import rollout_pb2, scoring_pb2
from kubealign_services.batch.codec import encode
from kubealign_services.batch.packed import pack
from kubealign_services.data.prepared import PreparedRow
from kubealign_services.messaging.memory import MemoryBus
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.roles.driver.rollouts.batch_scoring import BatchScoring
from kubealign_services.roles.driver.rollouts.collector import RolloutCollector, create_group
from kubealign_services.roles.driver.rollouts.group_buffer import GroupBuffer, GroupBufferOptions, GroupPlan
from kubealign_services.roles.driver.rollouts.group_tracker import GroupTracker, RolloutGroup
from kubealign_services.roles.driver.rollouts.prompt_source import ListPrompts
from kubealign_services.runtime.rpc.errors import InvalidRequest
from kubealign_services.scoring.purposes import requested_purpose
from kubealign_services.scoring.worker import ScoreWorker, empty_score

pytestmark = pytest.mark.timeout(30)

SAMPLES = 3
SOURCES = ("exact", "rank")
ROWS = [PreparedRow(row=i, prompt_tokens=[i + 1], prompt_text=str(i)) for i in range(4)]


class Scorer:
    """Scores rollouts by their sample and records its calls: the samples of each.

    fails: attempts of a group that fail. refuses: groups of which a request is refused once.
    """

    def __init__(self, source: str, order: list[str]) -> None:
        self.source = source
        self._order = order
        self.calls: list[list[tuple[str, int]]] = []
        self.fails: set[tuple[str, int]] = set()
        self.refuses: set[str] = set()
        self.called = asyncio.Event()
        self.release = asyncio.Event()
        self.release.set()

    async def __call__(self, rollouts: Sequence[rollout_pb2.Rollout]) -> list[scoring_pb2.Score]:
        self.calls.append([(rollout.group_id, rollout.sample) for rollout in rollouts])
        self._order.append(self.source)
        self.called.set()
        await self.release.wait()
        refused = self.refuses.intersection(rollout.group_id for rollout in rollouts)
        if refused:
            if len({rollout.group_id for rollout in rollouts}) == 1:
                self.refuses -= refused
            raise InvalidRequest("no row")
        scores = [empty_score(rollout, self.source, "w") for rollout in rollouts]
        for score, rollout in zip(scores, rollouts, strict=True):
            score.reward = float(rollout.sample)
            if (rollout.group_id, rollout.attempt) in self.fails:
                score.error = "raised"
        return scores


def sample_of(item: rollout_pb2.WorkItem, sample: int, response: str = "") -> rollout_pb2.Rollout:
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
        response=response,
    )


class Site:
    """A driver's group buffer, a rollout worker and a scorer of each source; rank scores groups."""

    def __init__(
        self, collector: RolloutCollector, bus: MemoryBus, on_arrival: bool, timeout: float, response: str
    ) -> None:
        self.order: list[str] = []
        self.scorers = {source: Scorer(source, self.order) for source in SOURCES}
        self.bus = bus
        self._response = response
        self.requested, self.generate = asyncio.Event(), asyncio.Event()
        self.generate.set()
        plan = GroupPlan(
            job_seed=1,
            prompts_per_step=2,
            samples_per_prompt=SAMPLES,
            sampling=rollout_pb2.Sampling(max_tokens=4, temperature=1.0, top_p=1.0),
            group_timeout=timeout,
            group_retries=1,
            max_failed_groups=0,
        )
        scoring = None if on_arrival else BatchScoring(collector, SOURCES, False, {"rank"})
        options = GroupBufferOptions(batch_scoring=scoring, group_sources={"rank", "other"})
        self.buffer = GroupBuffer(collector, ListPrompts(ROWS, "0"), plan, "train", SOURCES, options)

    async def work(self) -> None:
        """Generate each work item, its last sample first."""
        while True:
            for delivery in await self.bus.pull("work", "rollout", 8, 5.0):
                item = rollout_pb2.WorkItem.FromString(delivery.data)
                self.requested.set()
                await self.generate.wait()
                for sample in reversed(range(item.samples)):
                    rollout = sample_of(item, sample, self._response)
                    name = f"{item.group_id}:{item.attempt}:{sample}"
                    await self.bus.publish("rollouts", rollout.SerializeToString(), name)
                await delivery.ack()


@asynccontextmanager
async def site(
    on_arrival: bool, timeout: float = 20.0, response: str = "", max_payload: int = 1 << 20
) -> AsyncIterator[Site]:
    bus = MemoryBus(max_payload=max_payload)
    async with RolloutCollector(bus, 1, asyncio.Event(), lambda text: None) as collector:
        new_site = Site(collector, bus.new_connection(), on_arrival, timeout, response)
        purposes = {
            "exact": "train" if on_arrival else requested_purpose("train", "exact"),
            "rank": requested_purpose("train", "rank"),
        }
        workers = [
            ScoreWorker(bus.new_connection(), source, frozenset({purposes[source]}), scorer, 1)
            for source, scorer in new_site.scorers.items()
        ]
        tasks = [asyncio.create_task(each) for each in (new_site.work(), *(w.run() for w in workers))]
        try:
            yield new_site
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("on_arrival", [True, False])
async def test_one_request_has_all_samples_of_a_prompt(on_arrival: bool) -> None:
    async with site(on_arrival) as stage:
        for numbers in ((0, 1), (2, 3)):
            stage.order.clear()
            for scorer in stage.scorers.values():
                scorer.calls.clear()
            groups = await stage.buffer.take_batch(version=0)
            assert [group.group_id for group in groups] == [f"0/{number}" for number in numbers]
            for group in groups:
                assert [group.reward(sample, "rank") for sample in range(SAMPLES)] == [0.0, 1.0, 2.0]
            assert sorted(stage.scorers["rank"].calls) == [
                [(f"0/{number}", sample) for sample in range(SAMPLES)] for number in numbers
            ]
            assert [len(call) for call in stage.scorers["exact"].calls] == [1] * 2 * SAMPLES
            if not on_arrival:
                assert stage.order == ["exact"] * 2 * SAMPLES + ["rank"] * 2


async def test_a_group_is_requested_while_no_batch_is_taken() -> None:
    """The driver trains while the samples of the next prompts arrive."""
    async with site(on_arrival=True) as stage, asyncio.timeout(10):
        stage.generate.clear()
        batch = asyncio.create_task(stage.buffer.take_batch(version=0))
        await stage.requested.wait()
        batch.cancel()
        await asyncio.gather(batch, return_exceptions=True)
        stage.generate.set()
        await stage.scorers["rank"].called.wait()


async def test_a_group_whose_score_failed_is_generated_and_scored_again() -> None:
    async with site(on_arrival=True) as stage:
        stage.scorers["rank"].fails = {("0/1", 0)}
        first, second = await stage.buffer.take_batch(version=0)
        assert (first.attempt, second.attempt) == (0, 1)
        calls = [call[0][0] for call in stage.scorers["rank"].calls]
        assert sorted(calls) == ["0/0", "0/1", "0/1"]


async def test_a_group_that_is_refused_is_requested_again_when_it_is_overdue() -> None:
    async with site(on_arrival=True, timeout=1.0) as stage:
        stage.scorers["rank"].refuses = {"0/1"}
        first, second = await stage.buffer.take_batch(version=0)
        assert (first.attempt, second.attempt) == (0, 1)
        assert second.is_complete(SOURCES)


@pytest.mark.parametrize("on_arrival", [True, False])
async def test_a_request_that_the_bus_has_lost_is_published_again(on_arrival: bool) -> None:
    async with site(on_arrival) as stage:
        rank = stage.scorers["rank"]
        rank.release.clear()
        batch = asyncio.create_task(stage.buffer.take_batch(version=0))
        async with asyncio.timeout(10):
            await rank.called.wait()
        # Time for the second request to be published.
        for _ in range(500):
            await asyncio.sleep(0)
        assert stage.buffer.describe_missing() == "scores of rank for 2 groups"
        await stage.bus.simulate_data_loss()
        rank.release.set()
        async with asyncio.timeout(15):
            groups = await batch
        assert [group.attempt for group in groups] == [0, 0]
        assert all(len(call) == SAMPLES for call in rank.calls)


@pytest.mark.parametrize("on_arrival", [True, False])
async def test_a_group_that_does_not_fit_a_message_fails_with_remedies(on_arrival: bool) -> None:
    """Each sample alone fits."""
    async with site(on_arrival, response="x" * 1500, max_payload=4000) as stage:
        with pytest.raises(
            UnrecoverableError, match=r"the 3 samples of 0/. do not fit a message to rank.*lower"
        ):
            await stage.buffer.take_batch(version=0)


async def test_a_group_is_generated_once() -> None:
    """A copy of a sample that arrives later does not count."""
    bus, generated = MemoryBus(), []

    async def republish() -> None: ...

    async def add(group: RolloutGroup) -> None:
        generated.append(group.group_id)

    async with RolloutCollector(bus.new_connection(), 1, asyncio.Event(), lambda text: None) as collector:
        tracker = GroupTracker(1, "train", ())
        for number in range(2):
            tracker.add(create_group(f"0/{number}", 1, 0, 60.0))
        collector.register(tracker, republish, add)
        for index, number in enumerate((0, 0, 1)):
            item = rollout_pb2.WorkItem(fence=1, group_id=f"0/{number}", purpose="train")
            await bus.publish("rollouts", sample_of(item, 0).SerializeToString(), str(index))
        async with asyncio.timeout(10):
            while len(generated) < 2:
                await collector.wait_for_updates(tracker)
                await asyncio.sleep(0)
    assert generated == ["0/0", "0/1"]
