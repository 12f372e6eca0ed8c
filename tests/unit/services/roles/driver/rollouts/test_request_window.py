"""Groups of a large batch, requested in a window: over the real collector, an in-memory bus and a paced
worker, which advances a scripted clock."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kubealign.v1 import rollout_pb2
from kubealign_services.batch.codec import encode
from kubealign_services.batch.packed import Batch
from kubealign_services.data.epoch_shuffle import DatasetOrder, EpochCursor
from kubealign_services.data.prepared import PreparedRow
from kubealign_services.messaging.memory import MemoryBus
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.roles.driver.rollouts import collector, group_buffer
from kubealign_services.roles.driver.rollouts.collector import RolloutCollector
from kubealign_services.roles.driver.rollouts.group_buffer import GroupBuffer, GroupPlan
from kubealign_services.roles.driver.rollouts.group_tracker import RolloutGroup
from kubealign_services.roles.driver.rollouts.prompt_source import EpochPrompts
from kubealign_services.roles.driver.rollouts.work_items import derive_sample_seed
from kubealign_services.runtime.process.bus_load import RequestWindow

pytestmark = pytest.mark.timeout(120)

GROUP_TIMEOUT = 600.0
SAMPLES = 2
ROWS = [PreparedRow(row=i, prompt_tokens=[1], prompt_text=str(i)) for i in range(3000)]


class Clock:
    """Clock of the driver's modules, in seconds."""

    def __init__(self) -> None:
        self.now = 1000.0

    def time(self) -> float:
        return self.now

    monotonic = time


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (collector, group_buffer):
        monkeypatch.setattr(module, "time", SimpleNamespace(time=clock.time, monotonic=clock.monotonic))
    return clock


#: Chooses the index of the next item to finish among those that a worker holds; None: it finishes none.
Choice = Callable[[list[rollout_pb2.WorkItem]], int | None]


class PacedWorker:
    """Worker that pulls items while it has capacity, skips expired ones and finishes one group at a time.

    max_outstanding: largest number of groups that were requested and not finished.
    """

    def __init__(self, bus: MemoryBus, capacity: int, choose: Choice, clock: Clock, seconds: float) -> None:
        self._bus, self._capacity, self._choose = bus, capacity, choose
        self._clock, self._seconds = clock, seconds
        self._items: list[rollout_pb2.WorkItem] = []
        self.generated: list[rollout_pb2.WorkItem] = []
        self.outstanding: Callable[[], int] = lambda: 0
        self.max_outstanding = 0

    async def run(self) -> None:
        while True:
            if len(self._items) < self._capacity:
                wait = 0.0 if self._items else 1.0
                for delivery in await self._bus.pull("work", "rollout", 4, wait):
                    item = rollout_pb2.WorkItem.FromString(delivery.data)
                    await delivery.ack()
                    if item.deadline > self._clock.now:
                        self._items.append(item)
            self.max_outstanding = max(self.max_outstanding, self.outstanding())
            index = self._choose(self._items) if self._items else None
            if index is not None:
                self._clock.now += self._seconds
                await self._finish(self._items.pop(index))
            await asyncio.sleep(0)

    async def _finish(self, item: rollout_pb2.WorkItem) -> None:
        self.generated.append(item)
        sequence = Batch(
            tokens=torch.tensor([1, 9], dtype=torch.int32),
            cu_seqlens=torch.tensor([0, 2], dtype=torch.int32),
            sample_ids=["?"],
            token_columns={
                "loss_mask": torch.tensor([0, 1], dtype=torch.uint8),
                "weight_version": torch.tensor([-1, 0], dtype=torch.int32),
            },
        )
        for sample in range(item.samples):
            rollout = rollout_pb2.Rollout(
                fence=item.fence,
                group_id=item.group_id,
                attempt=item.attempt,
                sample=sample,
                sequence=encode(sequence),
                purpose=item.purpose,
                finish_reason=rollout_pb2.FINISH_REASON_STOP,
            )
            name = f"{item.group_id}:{item.attempt}:{sample}:{len(self.generated)}"
            await self._bus.publish("rollouts", rollout.SerializeToString(), name)


@asynccontextmanager
async def windowed_buffer(
    prompts: int, window: RequestWindow | None, choose: Choice, clock: Clock, seconds: float = 0.0
) -> AsyncIterator[tuple[GroupBuffer, PacedWorker]]:
    """Open a buffer of one batch with its worker, which holds at most eight groups."""
    bus = MemoryBus()
    plan = GroupPlan(
        job_seed=1,
        prompts_per_step=prompts,
        samples_per_prompt=SAMPLES,
        sampling=rollout_pb2.Sampling(max_tokens=4, temperature=1.0, top_p=1.0),
        group_timeout=GROUP_TIMEOUT,
        group_retries=1,
        max_failed_groups=0,
        window=window,
    )
    worker = PacedWorker(bus.new_connection(), 8, choose, clock, seconds)
    working = asyncio.create_task(worker.run())
    try:
        async with RolloutCollector(bus, 1, asyncio.Event(), lambda text: None) as opened:
            supply = EpochPrompts(ROWS, DatasetOrder(len(ROWS), 1, shuffle=False), EpochCursor(), ())  # type: ignore[arg-type]
            buffer = GroupBuffer(opened, supply, plan, "train", ())
            worker.outstanding = lambda: buffer.groups_in_flight
            yield buffer, worker
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


def assert_complete(groups: list[RolloutGroup], worker: PacedWorker, prompts: int) -> None:
    """Check that each prompt was generated once, with the seeds of its first attempt."""
    names = [f"0/{row}" for row in range(prompts)]
    assert [group.group_id for group in groups] == names
    assert all(sorted(group.rollouts) == list(range(SAMPLES)) for group in groups)
    assert sorted(item.group_id for item in worker.generated) == sorted(names)
    for item in worker.generated:
        seeds = [derive_sample_seed(1, "train", item.group_id, 0, sample) for sample in range(SAMPLES)]
        assert list(item.seeds) == seeds


async def finish_in_any_order(prompts: int, window: RequestWindow, seed: int) -> None:
    chance = random.Random(seed)

    def choice(items: list[rollout_pb2.WorkItem]) -> int | None:
        return chance.choice([None, chance.randrange(len(items))])

    async with windowed_buffer(prompts, window, choice, Clock()) as (buffer, worker):
        groups = await buffer.take_batch(version=0)
    assert_complete(groups, worker, prompts)
    assert worker.max_outstanding <= window.groups(SAMPLES)
    assert worker.max_outstanding > 0


@settings(max_examples=20, deadline=None)
@given(
    prompts=st.integers(1, 60),
    samples_per_worker=st.integers(1, 8),
    max_samples=st.integers(1, 100),
    seed=st.integers(0, 2**32),
)
def test_each_prompt_is_requested_once_and_never_more_than_the_window(
    prompts: int, samples_per_worker: int, max_samples: int, seed: int
) -> None:
    """For any order in which groups finish."""
    window = RequestWindow(1, samples_per_worker, max_samples)
    asyncio.run(finish_in_any_order(prompts, window, seed))


WINDOW = RequestWindow(workers=1, samples_per_worker=8, max_samples=10_000)


async def test_a_round_may_take_longer_than_the_deadline_of_a_group(clock: Clock) -> None:
    """Each group takes 100 seconds, against a deadline of 600. The round takes 100,000, and a group with the
    seven before it in the window 800.
    """
    async with windowed_buffer(1000, WINDOW, lambda items: 0, clock, seconds=100.0) as (buffer, worker):
        groups = await buffer.take_batch(version=0)
    assert_complete(groups, worker, 1000)
    assert worker.max_outstanding == WINDOW.groups(SAMPLES) == 8


async def test_a_lost_work_item_is_published_again_while_others_finish(clock: Clock) -> None:
    """The worker loses a work item. Its group gets no other seeds, as it may only have been queued."""
    lost: list[rollout_pb2.WorkItem] = []

    def lose_one(items: list[rollout_pb2.WorkItem]) -> int | None:
        if items[0].group_id == "0/3" and not lost:
            lost.append(items.pop(0))
        return 0 if items else None

    async with windowed_buffer(60, WINDOW, lose_one, clock, seconds=100.0) as (buffer, worker):
        groups = await buffer.take_batch(version=0)
    assert_complete(groups, worker, 60)
    assert [group.renewals for group in groups if group.group_id == "0/3"] == [1]
    assert len(lost) == 1


async def test_groups_fail_once_none_has_finished_for_the_time_of_the_deadline(clock: Clock) -> None:
    """The worker finishes 20 groups and then hangs: each of the others is retried once and then given up."""
    async with windowed_buffer(40, WINDOW, lambda items: 0, clock) as (buffer, worker):

        def hang_after_twenty(items: list[rollout_pb2.WorkItem]) -> int | None:
            if len(worker.generated) < 20:
                return 0
            clock.now += 50.0
            # A message of any kind wakes the driver, which waits in real time.
            buffer._collector._update_event.set()
            return None

        worker._choose = hang_after_twenty
        with pytest.raises(UnrecoverableError, match=r"given up after 2 tries each.*samples had not come"):
            await buffer.take_batch(version=0)
