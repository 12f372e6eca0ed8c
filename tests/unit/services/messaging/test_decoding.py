"""Messages that cannot be decoded, at each process that reads the bus."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kubealign.v1 import rollout_pb2, scoring_pb2
from kubealign_services.messaging.contract import Bus
from kubealign_services.messaging.memory import MemoryBus
from kubealign_services.roles.driver.rollouts.collector import RolloutCollector
from kubealign_services.roles.rollout.worker import RolloutWorker
from kubealign_services.runtime.rpc.errors import InvalidRequest
from kubealign_services.scoring.worker import ScoreWorker
from kubealign_services.telemetry.instrumented_bus import InstrumentedBus
from kubealign_services.telemetry.metrics import ProcessMetrics
from kubealign_services.weights.announce.coordinator import RefitCoordinator
from kubealign_services.weights.receive.refit_worker import RefitWorker

pytestmark = pytest.mark.timeout(30)

POISON = b"\xff\xff\xff"


class CountedBus(InstrumentedBus):
    """Bus whose rejected messages can be awaited."""

    def __init__(self) -> None:
        self.server = MemoryBus(ack_wait=5.0)
        self._process = ProcessMetrics("sums", "rollout", "rollout-0")
        super().__init__(
            self.server.new_connection(), self._process.bus_messages, self._process.bus_messages_lost
        )

    def rejected(self, subject: str) -> float:
        labels = {"subject": subject, "event": "rejected"}
        value = self._process.registry.get_sample_value("kubealign_bus_messages_total", labels)
        return value or 0.0


@asynccontextmanager
async def running(work: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def wait_until_rejected(bus: CountedBus, subject: str, reader: asyncio.Task[None] | None) -> None:
    """Wait for the rejection of one message. Raises the error of a reader that has ended."""
    while not bus.rejected(subject):
        if reader is not None and reader.done():
            reader.result()
        # The counter has no event.
        await asyncio.sleep(0.01)
    assert bus.rejected(subject) == 1.0


async def score(rollouts: Sequence[rollout_pb2.Rollout]) -> list[scoring_pb2.Score]:
    if any(rollout.response == "refused" for rollout in rollouts):
        raise InvalidRequest("columns of sample 0 is b''")
    return [scoring_pb2.Score(group_id=each.group_id, sample=each.sample, reward=1.0) for each in rollouts]


async def publish_rollout(bus: Bus, sample: int, response: str = "") -> None:
    rollout = rollout_pb2.Rollout(fence=1, group_id="0/1", sample=sample, purpose="train", response=response)
    await bus.publish("rollouts", rollout.SerializeToString(), str(sample))


async def test_a_scorer_rejects_it_and_scores_the_others() -> None:
    bus = CountedBus()
    await bus.server.publish("rollouts", POISON, "poison")
    await publish_rollout(bus.server, 1)
    async with running(ScoreWorker(bus, "reward-even", frozenset({"train"}), score).run()) as worker:
        await wait_until_rejected(bus, "rollouts", worker)
        [delivery] = await bus.server.pull("scores", "driver", 2, 5.0)
        assert scoring_pb2.Score.FromString(delivery.data).sample == 1
    assert await bus.server.pull("rollouts", "reward-even", 2, 0.0) == []


async def test_a_rollout_that_a_scorer_refuses_does_not_end_it() -> None:
    bus = CountedBus()
    await publish_rollout(bus.server, 0, "refused")
    await publish_rollout(bus.server, 1)
    async with running(ScoreWorker(bus, "reward-even", frozenset({"train"}), score).run()) as worker:
        [delivery] = await bus.server.pull("scores", "driver", 2, 5.0)
        assert scoring_pb2.Score.FromString(delivery.data).sample == 1
        assert not worker.done()


class NoWeights:
    async def wait_until_released(self) -> None:
        return


async def test_a_rollout_worker_rejects_it() -> None:
    bus = CountedBus()
    await bus.server.publish("work", POISON, "poison")
    worker = RolloutWorker("rollout-0", bus, None, NoWeights(), capacity=4)  # type: ignore[arg-type]
    async with running(worker.run()) as task:
        await wait_until_rejected(bus, "work", task)
        assert not task.done()
    assert await bus.server.pull("work", "rollout", 1, 0.0) == []


async def test_a_rollout_worker_passes_over_it_among_announcements() -> None:
    bus = CountedBus()
    await bus.server.publish("refit", POISON, "poison")
    worker = RefitWorker("rollout-0", bus, None, None, 5.0)  # type: ignore[arg-type]
    async with running(worker.run()) as task:
        await wait_until_rejected(bus, "refit", task)
        assert not task.done()
    assert not worker.lacks_weights


@pytest.mark.parametrize("subject", ["rollouts", "scores"])
async def test_the_driver_rejects_it(subject: str) -> None:
    bus = CountedBus()
    async with RolloutCollector(bus, 1, asyncio.Event(), lambda describe: None):
        await bus.server.publish(subject, POISON, "poison")
        await wait_until_rejected(bus, subject, None)


async def test_the_driver_rejects_it_among_acknowledgements() -> None:
    bus = CountedBus()

    async def publish(*arguments: object) -> None:
        raise AssertionError("nothing is announced here")

    async with RefitCoordinator(bus, publish, fence=1, min_replicas=1, timeout=5):  # type: ignore[arg-type]
        await bus.server.publish("refit-acks", POISON, "poison")
        await wait_until_rejected(bus, "refit-acks", None)
