"""Bound of the staleness of samples: groups of any speed, over the real collector and an in-memory bus."""

import asyncio
import random

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
from kubealign_services.roles.driver.rollouts.batch_assembly import find_oldest_version
from kubealign_services.roles.driver.rollouts.collector import RolloutCollector
from kubealign_services.roles.driver.rollouts.group_buffer import GroupBuffer, GroupPlan
from kubealign_services.roles.driver.rollouts.prompt_source import EpochPrompts

pytestmark = pytest.mark.timeout(120)

ROWS = [PreparedRow(row=i, prompt_tokens=[1], prompt_text=str(i)) for i in range(100)]
STEPS = 7
SAMPLES = 2


class Workers:
    """Workers that finish samples in any order.

    A sample begins with weights that its item allows, and may live through all versions until it ends.
    now: the newest version.
    """

    def __init__(self, bus: MemoryBus, chance: random.Random, failing: float) -> None:
        self.now = 0
        self._bus, self._chance, self._failing = bus, chance, failing
        # Each with the version at its start.
        self._held: list[tuple[rollout_pb2.WorkItem, int, int]] = []

    async def run(self) -> None:
        while True:
            wait = 0.0 if self._held else 1.0
            for delivery in await self._bus.pull("work", "w", 64, wait):
                item = rollout_pb2.WorkItem.FromString(delivery.data)
                assert item.min_version <= self.now
                begun = self._chance.randint(item.min_version, self.now)
                self._held += [(item, sample, begun) for sample in range(item.samples)]
                await delivery.ack()
            if self._held:
                # Some are far slower than others.
                index = min(
                    self._chance.randrange(len(self._held)) for _ in range(self._chance.randint(1, 4))
                )
                await self._end(*self._held.pop(len(self._held) - 1 - index))
            await asyncio.sleep(0)

    async def _end(self, item: rollout_pb2.WorkItem, sample: int, begun: int) -> None:
        fails = item.attempt == 0 and self._chance.random() < self._failing
        sequence = Batch(
            tokens=torch.tensor([1, 8, 9], dtype=torch.int32),
            cu_seqlens=torch.tensor([0, 3], dtype=torch.int32),
            sample_ids=["?"],
            token_columns={
                "loss_mask": torch.tensor([0, 1, 1], dtype=torch.uint8),
                "weight_version": torch.tensor([-1, begun, self.now], dtype=torch.int32),
            },
        )
        rollout = rollout_pb2.Rollout(
            fence=item.fence,
            group_id=item.group_id,
            attempt=item.attempt,
            sample=sample,
            sequence=encode(sequence),
            purpose=item.purpose,
            finish_reason=rollout_pb2.FINISH_REASON_FAILED if fails else rollout_pb2.FINISH_REASON_STOP,
            error="out of memory" if fails else "",
        )
        name = f"{item.group_id}:{item.attempt}:{sample}"
        await self._bus.publish("rollouts", rollout.SerializeToString(), name)


async def steps(prompts: int, staleness: int, chance: random.Random, failing: float) -> None:
    bus = MemoryBus()
    workers = Workers(bus.new_connection(), chance, failing)
    working = asyncio.create_task(workers.run())
    plan = GroupPlan(
        job_seed=1,
        prompts_per_step=prompts,
        samples_per_prompt=SAMPLES,
        sampling=rollout_pb2.Sampling(max_tokens=4, temperature=1.0, top_p=1.0),
        group_timeout=60.0,
        group_retries=1,
        max_failed_groups=0,
        max_staleness=staleness,
    )
    asked_at: dict[str, int] = {}
    taken: list[str] = []
    try:
        async with RolloutCollector(bus, 1, asyncio.Event(), lambda text: None) as exchange:
            supply = EpochPrompts(ROWS, DatasetOrder(len(ROWS), 1, shuffle=False), EpochCursor(), ())  # type: ignore[arg-type]
            buffer = GroupBuffer(exchange, supply, plan, "train", ())
            for version in range(STEPS):
                workers.now = version
                groups = await buffer.take_batch(version)
                taken += [group.group_id for group in groups]
                for name in [*taken, *buffer.outstanding_prompts]:
                    asked_at.setdefault(name, version)
                for group in groups:
                    assert version - find_oldest_version(group) <= staleness
                    assert version - asked_at[group.group_id] <= staleness
                # The next step's requests come on top.
                assert len(buffer.outstanding_prompts) == staleness * prompts
                assert buffer.discarded_groups == 0
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
    assert taken == [f"0/{row}" for row in range(STEPS * prompts)]


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    prompts=st.integers(1, 3),
    staleness=st.integers(0, 3),
    seed=st.integers(0, 2**32),
    failing=st.sampled_from([0.0, 0.2]),
)
def test_no_sample_is_stale_and_none_is_discarded(
    prompts: int, staleness: int, seed: int, failing: float
) -> None:
    """For any speed of the workers, each step trains on the oldest requested prompts, at most `staleness`
    versions after their request, and no token is older than its item demands.
    """
    asyncio.run(steps(prompts, staleness, random.Random(seed), failing))
