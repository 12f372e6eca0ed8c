"""A driver that another one has replaced notices it wherever it waits, and takes no messages from it."""

import asyncio
from pathlib import Path

import pytest

from kubealign.v1 import batch_pb2, refit_pb2, rollout_pb2, scoring_pb2
from kubealign_services.checkpoints.fence import Fence, StaleFence, acquire_fence
from kubealign_services.messaging.memory import MemoryBus
from kubealign_services.roles.driver import cancellation
from kubealign_services.roles.driver.cancellation import run_until_any, wait_until_replaced
from kubealign_services.roles.driver.rollouts.collector import RolloutCollector
from kubealign_services.roles.driver.rollouts.group_tracker import GroupTracker
from kubealign_services.weights.announce.coordinator import RefitCoordinator

pytestmark = pytest.mark.timeout(30)


async def nothing() -> None:
    return


@pytest.mark.parametrize(
    ("subject", "message"),
    [
        ("rollouts", rollout_pb2.Rollout(fence=2, group_id="0/1", purpose="train")),
        ("scores", scoring_pb2.Score(fence=2, group_id="0/1")),
    ],
)
async def test_messages_of_a_higher_fence_are_returned(
    subject: str, message: rollout_pb2.Rollout | scoring_pb2.Score
) -> None:
    bus = MemoryBus()
    tracker = GroupTracker(1, "train", ("exact",))
    async with RolloutCollector(bus, 1, asyncio.Event(), lambda describe: None) as collector:
        collector.register(tracker, nothing)
        await bus.publish(subject, message.SerializeToString(), "newer")
        with pytest.raises(StaleFence, match="fence 1 has been replaced by 2"):
            await collector.wait_for_updates(tracker)
        deliveries = await bus.pull(subject, "driver", 10, 5.0)
        assert [delivery.data for delivery in deliveries] == [message.SerializeToString()]


async def test_acknowledgements_of_a_higher_fence_are_returned() -> None:
    bus = MemoryBus()

    async def publish(fence: int, version: int) -> refit_pb2.WeightsAnnouncement:
        return refit_pb2.WeightsAnnouncement(weights=batch_pb2.WeightsId(fence=fence, version=version))

    newer = refit_pb2.RefitAcknowledgement(
        weights=batch_pb2.WeightsId(fence=2, version=5), worker="rollout-0"
    )
    async with RefitCoordinator(bus, publish, fence=1, min_replicas=1, timeout=20) as coordinator:
        await bus.publish("refit-acks", newer.SerializeToString(), "newer")
        with pytest.raises(StaleFence, match="fence 1 has been replaced by 2"):
            await coordinator.publish(5)
        deliveries = await bus.pull("refit-acks", "driver", 10, 5.0)
        assert [delivery.data for delivery in deliveries] == [newer.SerializeToString()]


async def test_messages_of_a_lower_fence_are_dropped() -> None:
    bus = MemoryBus()
    tracker = GroupTracker(2, "train", ("exact",))
    message = rollout_pb2.Rollout(fence=1, group_id="0/1", purpose="train")
    async with RolloutCollector(bus, 2, asyncio.Event(), lambda describe: None) as collector:
        collector.register(tracker, nothing)
        await bus.publish("rollouts", message.SerializeToString(), "older")
        assert await collector.wait_for_updates(tracker) == []
        assert await bus.pull("rollouts", "driver", 10, 0.0) == []


async def test_a_driver_that_waits_for_ever_ends_when_it_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancellation, "_FENCE_SECONDS", 0.01)
    fence = Fence(tmp_path, acquire_fence(tmp_path))
    waiting = asyncio.create_task(run_until_any(asyncio.Event().wait(), wait_until_replaced(fence)))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    acquire_fence(tmp_path)
    with pytest.raises(StaleFence, match="fence 1 has been replaced by 2"):
        await waiting
