"""Group buffer over a bus, with a scripted worker."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest
import torch

from kubealign.spec.sections.rewards import Reward, RewardFunction
from kubealign.v1 import rollout_pb2, scoring_pb2
from kubealign_services.batch.codec import encode
from kubealign_services.batch.packed import Batch
from kubealign_services.data.epoch_shuffle import DatasetOrder, EpochCursor
from kubealign_services.data.prepared import PreparedRow
from kubealign_services.messaging.contract import Delivery
from kubealign_services.messaging.memory import MemoryBus
from kubealign_services.messaging.retention_limits import Bounds, bounds_for
from kubealign_services.roles.driver.errors import ShutdownRequested, UnrecoverableError
from kubealign_services.roles.driver.rollouts.collector import RolloutCollector
from kubealign_services.roles.driver.rollouts.dynamic_sampling import DynamicSamplingFilter
from kubealign_services.roles.driver.rollouts.group_buffer import GroupBuffer, GroupBufferOptions, GroupPlan
from kubealign_services.roles.driver.rollouts.group_tracker import RolloutGroup
from kubealign_services.roles.driver.rollouts.prompt_source import EpochPrompts, ListPrompts
from support.recorded_spans import record_spans

ROWS = [
    PreparedRow(row=i, prompt_tokens=[i + 1], prompt_text=str(i), columns={"answer": i}) for i in range(6)
]

#: item -> error of its rollouts; None: generate them.
Verdict = Callable[[rollout_pb2.WorkItem], str | None]


def plan(**changes: object) -> GroupPlan:
    settings: dict[str, object] = {
        "job_seed": 1,
        "prompts_per_step": 3,
        "samples_per_prompt": 2,
        "sampling": rollout_pb2.Sampling(max_tokens=4, temperature=1.0, top_p=1.0),
        "group_timeout": 20.0,
        "group_retries": 1,
        "max_failed_groups": 0,
    }
    return GroupPlan(**(settings | changes))  # type: ignore[arg-type]


def rollout_of(
    item: rollout_pb2.WorkItem, sample: int, version: int = 0, error: str = ""
) -> rollout_pb2.Rollout:
    """Return a sample of one token."""
    length = len(item.prompt_tokens) + 1
    sequence = Batch(
        tokens=torch.tensor([*item.prompt_tokens, 9], dtype=torch.int32),
        cu_seqlens=torch.tensor([0, length], dtype=torch.int32),
        sample_ids=["?"],
        token_columns={
            "loss_mask": torch.tensor([0] * (length - 1) + [1], dtype=torch.uint8),
            "weight_version": torch.full((length,), version, dtype=torch.int32),
        },
    )
    return rollout_pb2.Rollout(
        fence=item.fence,
        group_id=item.group_id,
        attempt=item.attempt,
        sample=sample,
        worker="w",
        sequence=encode(sequence),
        purpose=item.purpose,
        columns=item.columns,
        finish_reason=rollout_pb2.FINISH_REASON_FAILED if error else rollout_pb2.FINISH_REASON_STOP,
        error=error,
    )


def score_of(rollout: rollout_pb2.Rollout, reward: float) -> scoring_pb2.Score:
    return scoring_pb2.Score(
        fence=rollout.fence,
        group_id=rollout.group_id,
        attempt=rollout.attempt,
        sample=rollout.sample,
        digest=rollout.sequence.digest,
        source="exact",
        reward=reward,
    )


#: row -> the reward of each of its samples.
Rewards = Callable[[str], list[float]]


def all_one(row: str) -> list[float]:
    return [1.0, 1.0]


async def answer(
    bus: MemoryBus, verdict: Verdict, asked: list[rollout_pb2.WorkItem], version: int | None, rewards: Rewards
) -> None:
    """Run a rollout worker and a scorer in one, which publishes scores before rollouts so that they cross.

    version: weight version of all samples; None: the minimum that the item demands.
    """
    while True:
        for delivery in await bus.pull("work", "rollout", 8, 1.0):
            item = rollout_pb2.WorkItem.FromString(delivery.data)
            asked.append(item)
            error = verdict(item) or ""
            weight_version = item.min_version if version is None else version
            for sample in range(item.samples):
                rollout = rollout_of(item, sample, weight_version, error)
                reward = rewards(item.group_id.rpartition("/")[2])[sample]
                name = f"{item.fence}:{item.group_id}:{item.attempt}:{sample}"
                await bus.publish("scores", score_of(rollout, reward).SerializeToString(), name)
                await bus.publish("rollouts", rollout.SerializeToString(), name)
            await delivery.ack()


@asynccontextmanager
async def exchange(
    verdict: Verdict = lambda item: None, version: int | None = 0, rewards: Rewards = all_one
) -> AsyncIterator[tuple[RolloutCollector, asyncio.Event, list[rollout_pb2.WorkItem]]]:
    bus, stop, asked = MemoryBus(), asyncio.Event(), list[rollout_pb2.WorkItem]()
    worker = asyncio.create_task(answer(bus.new_connection(), verdict, asked, version, rewards))
    try:
        async with RolloutCollector(bus, 1, stop, lambda text: None) as opened:
            yield opened, stop, asked
    finally:
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)


def epochs(cursor: EpochCursor | None = None, unfinished: tuple[str, ...] = ()) -> EpochPrompts:
    return EpochPrompts(ROWS, DatasetOrder(len(ROWS), 1, shuffle=False), cursor or EpochCursor(), unfinished)  # type: ignore[arg-type]


async def test_a_step_takes_the_oldest_groups_with_all_their_samples_and_scores() -> None:
    async with exchange() as (opened, _, asked):
        buffer = GroupBuffer(opened, epochs(), plan(), "train", ("exact",))
        groups = await buffer.take_batch(version=0)
        assert [group.group_id for group in groups] == ["0/0", "0/1", "0/2"]
        assert all(sorted(group.rollouts) == [0, 1] for group in groups)
        assert buffer.outstanding_prompts == []
        assert json.loads(asked[1].columns) == {"prompt": "1", "columns": {"answer": 1}}
        assert [group.group_id for group in await buffer.take_batch(version=0)] == ["0/3", "0/4", "0/5"]
        # the next epoch begins
        assert [group.group_id for group in await buffer.take_batch(version=0)] == ["1/0", "1/1", "1/2"]


async def test_generated_groups_are_reported_while_others_are_missing() -> None:
    """The second group fails once; until it is regenerated, the callback receives the first and the third."""

    def once(item: rollout_pb2.WorkItem) -> str | None:
        return "out of memory" if item.group_id == "0/1" and item.attempt == 0 else None

    reported: list[tuple[list[str], int]] = []
    async with exchange(once) as (opened, _, _asked):
        buffer = GroupBuffer(opened, epochs(), plan(), "train", ("exact",))
        await buffer.take_batch(
            0, lambda generated, missing: reported.append(([g.group_id for g in generated], missing))
        )
    assert (["0/0", "0/2"], 1) in reported
    assert all(len(generated) + missing == 3 and missing for generated, missing in reported)


@pytest.mark.parametrize("dropped", [False, True])
async def test_unscored_groups_are_reported(dropped: bool) -> None:
    """Groups that may be dropped for their rewards are not reported, since they might not be taken."""
    bus, reported, heard = MemoryBus(), list[tuple[int, int]](), asyncio.Event()

    def record(groups: Sequence[RolloutGroup], missing: int) -> None:
        reported.append((len(groups), missing))
        heard.set()

    async def rollouts(opened: MemoryBus) -> list[rollout_pb2.Rollout]:
        rollouts_sent = []
        while len(rollouts_sent) < 6:
            for delivery in await opened.pull("work", "rollout", 8, 5.0):
                item = rollout_pb2.WorkItem.FromString(delivery.data)
                rollouts_sent += [rollout_of(item, sample) for sample in range(item.samples)]
                await delivery.ack()
        for number, rollout in enumerate(rollouts_sent):
            await opened.publish("rollouts", rollout.SerializeToString(), str(number))
        return rollouts_sent

    async with RolloutCollector(bus, 1, asyncio.Event(), lambda text: None) as opened, asyncio.timeout(20):
        options = GroupBufferOptions(dynamic_sampling=DynamicSamplingFilter(REWARDS, 2 if dropped else 0))
        buffer = GroupBuffer(opened, epochs(), plan(), "train", ("exact",), options)
        taking = asyncio.create_task(buffer.take_batch(0, record))
        published = await rollouts(bus.new_connection())
        while not dropped and (3, 0) not in reported:
            await heard.wait()
            heard.clear()
        for number, rollout in enumerate(published):
            # Samples of one group get different scores, so that no group is dropped.
            score = score_of(rollout, float(rollout.sample))
            await bus.publish("scores", score.SerializeToString(), str(number))
        assert len(await taking) == 3
        assert ((3, 0) in reported) is not dropped


async def test_failure_names_the_messages_that_the_bus_has_discarded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A scorer does not read while the rollouts of three groups pass a stream with room for two."""
    bus = MemoryBus(bounds={**bounds_for(1, 1, 1, 1), "rollouts": Bounds(2, 1 << 20)})
    scorer = bus.new_connection()
    async with RolloutCollector(bus, 1, asyncio.Event(), lambda text: None) as opened, asyncio.timeout(20):
        assert await scorer.pull("rollouts", "reward-exact", 1, 0.01) == []
        buffer = GroupBuffer(opened, epochs(), plan(group_timeout=0.5, group_retries=0), "train", ("exact",))
        taking = asyncio.create_task(buffer.take_batch(0))
        worker = asyncio.create_task(publish_rollouts(bus.new_connection()))
        with pytest.raises(
            UnrecoverableError,
            match=r"discarded [1-4] messages of rollouts that reward-exact had not received",
        ):
            await taking
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
    assert any("that reward-exact had not received" in text for text in caplog.messages)


async def publish_rollouts(bus: MemoryBus) -> None:
    """Generate the samples of all work items."""
    while True:
        for delivery in await bus.pull("work", "rollout", 1, 1.0):
            item = rollout_pb2.WorkItem.FromString(delivery.data)
            for sample in range(item.samples):
                name = f"{item.group_id}:{item.attempt}:{sample}"
                await bus.publish("rollouts", rollout_of(item, sample).SerializeToString(), name)
            await delivery.ack()


async def test_unfinished_prompts_of_an_earlier_run_come_first() -> None:
    async with exchange() as (opened, _, _asked):
        supply = epochs(EpochCursor(0, 4), ("0/2", "0/1"))
        buffer = GroupBuffer(opened, supply, plan(), "train", ("exact",))
        assert [group.group_id for group in await buffer.take_batch(version=0)] == ["0/2", "0/1", "0/4"]


async def test_a_failed_group_is_retried_with_other_seeds() -> None:
    def once(item: rollout_pb2.WorkItem) -> str | None:
        return "out of memory" if item.group_id == "0/1" and item.attempt == 0 else None

    async with exchange(once) as (opened, _, asked):
        groups = await GroupBuffer(opened, epochs(), plan(), "train", ("exact",)).take_batch(version=0)
        assert sorted(group.group_id for group in groups) == ["0/0", "0/1", "0/2"]
        first, second = (list(item.seeds) for item in asked if item.group_id == "0/1")
        assert set(first).isdisjoint(second)


class SlowToAskAgain(MemoryBus):
    """Bus that delays the second request for a group until four rollouts have arrived."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_again, self.four_came = asyncio.Event(), asyncio.Event()
        self._came = 0

    async def publish(
        self, subject: str, data: bytes, message_id: str, headers: Mapping[str, str] | None = None
    ) -> None:
        if subject == "work" and rollout_pb2.WorkItem.FromString(data).attempt == 1:
            self.asked_again.set()
            await self.four_came.wait()
        await super().publish(subject, data, message_id, headers)

    async def pull(self, subject: str, consumer: str, count: int, wait: float) -> list[Delivery]:
        pulled = await super().pull(subject, consumer, count, wait)
        self._came += len(pulled) if subject == "rollouts" else 0
        if self._came == 4:
            self.four_came.set()
        return pulled


async def test_samples_that_fail_together_count_as_one_attempt() -> None:
    """The second sample of a group fails after the first failure is known and before the group is requested
    again, while another group is.
    """
    bus = SlowToAskAgain()
    other = bus.new_connection()

    async def send(rollout: rollout_pb2.Rollout) -> None:
        name = f"{rollout.group_id}:{rollout.attempt}:{rollout.sample}"
        await other.publish("rollouts", rollout.SerializeToString(), name)

    async def work() -> rollout_pb2.WorkItem:
        (delivery,) = await other.pull("work", "w", 1, 5.0)
        await delivery.ack()
        return rollout_pb2.WorkItem.FromString(delivery.data)

    async with RolloutCollector(bus, 1, asyncio.Event(), lambda text: None) as opened, asyncio.timeout(10):
        buffer = GroupBuffer(opened, epochs(), plan(prompts_per_step=2), "train", ())
        taking = asyncio.create_task(buffer.take_batch(version=0))
        items = [await work() for _ in range(2)]
        for item in items:
            await send(rollout_of(item, 0, error="out of memory"))
        await bus.asked_again.wait()
        for item in items:
            await send(rollout_of(item, 1, error="out of memory"))
        for item in [await work() for _ in range(2)]:
            for sample in range(2):
                await send(rollout_of(item, sample))
        assert [group.attempt for group in await taking] == [1, 1]
        assert buffer.failed_prompts == []


async def test_another_prompt_replaces_one_that_keeps_failing() -> None:
    def never(item: rollout_pb2.WorkItem) -> str | None:
        return "too long" if item.group_id == "0/1" else None

    async with exchange(never) as (opened, _, _asked):
        buffer = GroupBuffer(opened, epochs(), plan(max_failed_groups=1), "train", ("exact",))
        assert [group.group_id for group in await buffer.take_batch(version=0)] == ["0/0", "0/2", "0/3"]
        assert buffer.failed_prompts == ["0/1"]


async def test_more_failed_prompts_than_the_budget_fail_the_job() -> None:
    async with exchange(lambda item: "the disk is on fire") as (opened, _, _asked):
        buffer = GroupBuffer(opened, epochs(), plan(), "train", ("exact",))
        with pytest.raises(UnrecoverableError, match=r"maxFailedGroups \(0\).*the disk is on fire"):
            await buffer.take_batch(version=0)


async def test_a_stale_group_is_resampled() -> None:
    async with exchange(version=4) as (opened, _, asked):
        buffer = GroupBuffer(opened, epochs(), plan(), "train", ("exact",))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(buffer.take_batch(version=5), 0.5)
        assert any(item.attempt == 1 and item.min_version == 5 for item in asked)
        assert buffer.discarded_groups >= 1


async def test_a_finite_prompt_source_ends() -> None:
    async with exchange() as (opened, _, _asked):
        supply = ListPrompts(ROWS[:4], "val@0")  # type: ignore[arg-type]
        buffer = GroupBuffer(opened, supply, plan(), "validation", ("exact",))
        assert [len(await buffer.take_batch(version=0)) for _ in range(3)] == [3, 1, 0]


async def test_shutdown_leaves_requests_outstanding() -> None:
    async with exchange(lambda item: None) as (opened, stop, _asked):
        buffer = GroupBuffer(opened, epochs(), plan(), "train", ("exact", "never-scores"))
        taking = asyncio.create_task(buffer.take_batch(version=0))
        await asyncio.sleep(0)
        stop.set()
        with pytest.raises(ShutdownRequested):
            await taking
        assert buffer.outstanding_prompts == ["0/0", "0/1", "0/2"]


async def test_requests_lost_by_the_bus_are_published_again() -> None:
    """Lost in turn: a work item that no worker took, a sample that the driver had not taken, and the scores
    of samples that it had.

    The attempt number stays, so nothing counts as failed.
    """
    bus = MemoryBus()
    other = bus.new_connection()

    async def pulled(subject: str) -> bytes:
        (delivery,) = await other.pull(subject, "other", 1, 5.0)
        await delivery.ack()
        return delivery.data

    async with RolloutCollector(bus, 1, asyncio.Event(), lambda text: None) as opened:
        buffer = GroupBuffer(opened, epochs(), plan(prompts_per_step=1), "train", ("exact",))

        async def until_it_waits_for(text: str) -> None:
            async with asyncio.timeout(5):
                while buffer.describe_missing() != text:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)

        taking = asyncio.create_task(buffer.take_batch(version=0))
        item = rollout_pb2.WorkItem.FromString(await pulled("work"))
        await bus.simulate_data_loss()
        again = rollout_pb2.WorkItem.FromString(await pulled("work"))
        assert (again.group_id, again.attempt, again.seeds) == (item.group_id, item.attempt, item.seeds)

        first, second = (rollout_of(item, sample) for sample in range(2))
        await bus.publish("rollouts", first.SerializeToString(), "first")
        assert await pulled("rollouts") == first.SerializeToString()
        await until_it_waits_for("1 samples of 1 groups from the rollout workers")
        await bus.simulate_data_loss()
        assert await pulled("rollouts") == first.SerializeToString(), "its score may be lost"
        assert rollout_pb2.WorkItem.FromString(await pulled("work")).attempt == 0

        await bus.publish("rollouts", second.SerializeToString(), "second")
        assert await pulled("rollouts") == second.SerializeToString()
        await until_it_waits_for("scores of exact for 1 groups")
        await bus.simulate_data_loss()
        for rollout in (first, second):
            assert await pulled("rollouts") == rollout.SerializeToString()
            await bus.publish("scores", score_of(rollout, 1.0).SerializeToString(), str(rollout.sample))
        assert await other.pull("work", "other", 1, 0.2) == [], "both samples have come"
        (group,) = await taking
        assert group.attempt == 0 and sorted(group.rollouts) == [0, 1]


async def test_requests_are_part_of_the_trace_of_their_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check those that a step publishes, and those published again when the bus has lost its data."""
    recorder, bus = record_spans(monkeypatch), MemoryBus()
    other = bus.new_connection()

    async def pulled(subject: str) -> tuple[bytes, str]:
        (delivery,) = await other.pull(subject, "other", 1, 5.0)
        await delivery.ack()
        return delivery.data, delivery.headers.get("traceparent", "none")

    async with RolloutCollector(bus, 1, asyncio.Event(), lambda text: None) as opened:
        buffer = GroupBuffer(opened, epochs(), plan(prompts_per_step=1), "train", ("exact",))
        with recorder.step(1) as step:
            taking = asyncio.create_task(buffer.take_batch(version=0))
        work, header = await pulled("work")
        assert step in header
        await bus.simulate_data_loss()
        _, header = await pulled("work")
        assert step in header
        rollout = rollout_of(rollout_pb2.WorkItem.FromString(work), 0)
        with recorder.step(2) as step:
            await opened.request_scores(rollout)
        _, header = await pulled("rollouts")
        assert step in header
        await opened.request_scores(rollout, renewals=1)
        assert await pulled("rollouts") == (rollout.SerializeToString(), "none"), "validation has no trace"
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)


REWARDS = [Reward(name="exact", function=RewardFunction(module="a:b"))]


async def test_uninformative_groups_are_dropped_and_replaced() -> None:
    # Rows 0 and 2 have identical rewards for all samples.
    rewards = {"0": [1.0, 1], "1": [0.0, 1], "2": [0.0, 0], "3": [1.0, 0], "4": [0.5, 0], "5": [1.0, 1]}
    async with exchange(rewards=rewards.__getitem__) as (opened, _, _asked):
        dropped: list[RolloutGroup] = []
        options = GroupBufferOptions(
            dynamic_sampling=DynamicSamplingFilter(REWARDS, 6), on_drop=dropped.append
        )
        buffer = GroupBuffer(opened, epochs(), plan(), "train", ("exact",), options)
        taken = await buffer.take_batch(version=0)
        assert [group.group_id for group in taken] == ["0/1", "0/3", "0/4"]
        assert [group.group_id for group in dropped] == ["0/0", "0/2"]
        assert [group.score(0, "exact").reward for group in dropped] == [1.0, 0.0]
        assert buffer.uninformative_groups == 2
        assert buffer.outstanding_prompts == []


async def test_uninformative_groups_are_taken_once_enough_were_dropped() -> None:
    async with exchange(version=None) as (opened, _, _asked):
        options = GroupBufferOptions(dynamic_sampling=DynamicSamplingFilter(REWARDS, 2))
        buffer = GroupBuffer(opened, epochs(), plan(), "train", ("exact",), options)
        taken = await buffer.take_batch(version=0)
        assert [group.group_id for group in taken] == ["0/2", "0/3", "0/4"]
        assert buffer.uninformative_groups == 2
        assert [group.group_id for group in await buffer.take_batch(version=1)] != []


async def test_with_staleness_groups_are_requested_ahead_and_stale_ones_again() -> None:
    async with exchange(version=None) as (opened, _, _asked):
        buffer = GroupBuffer(opened, epochs(), plan(max_staleness=1), "train", ("exact",))
        assert [group.group_id for group in await buffer.take_batch(version=0)] == ["0/0", "0/1", "0/2"]
        # Three more groups were requested at version 0.
        assert buffer.outstanding_prompts == ["0/3", "0/4", "0/5"]
        taken = await buffer.take_batch(version=1)
        assert [group.group_id for group in taken] == ["0/3", "0/4", "0/5"]
        assert [group.min_version for group in taken] == [0, 0, 0]
        assert buffer.discarded_groups == 0
        # Groups requested at version 1 are stale at version 3 and are resampled.
        taken = await buffer.take_batch(version=3)
        assert [group.min_version for group in taken] == [3, 3, 3]
        assert buffer.discarded_groups >= 3
