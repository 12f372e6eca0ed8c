"""Score worker on the bus."""

import asyncio
from collections.abc import Sequence

from kubealign.v1 import rollout_pb2, scoring_pb2
from kubealign_services.messaging.memory import MemoryBus
from kubealign_services.scoring.worker import ScoreWorker

_SAMPLES = 5
_SECONDS = 10


class _Together(MemoryBus):
    """A bus that stores a score once all of them are in flight."""

    def __init__(self) -> None:
        super().__init__()
        self._all = asyncio.Barrier(_SAMPLES)

    async def publish(self, subject: str, data: bytes, message_id: str) -> None:
        if subject == "scores":
            await self._all.wait()
        await super().publish(subject, data, message_id)


async def _score(rollouts: Sequence[rollout_pb2.Rollout]) -> list[scoring_pb2.Score]:
    return [scoring_pb2.Score(group_id=each.group_id, sample=each.sample, reward=1.0) for each in rollouts]


async def test_scores_are_published_concurrently() -> None:
    bus = _Together()
    for sample in range(_SAMPLES):
        rollout = rollout_pb2.Rollout(fence=1, group_id="0/1", sample=sample, purpose="train")
        await bus.publish("rollouts", rollout.SerializeToString(), str(sample))
    worker = asyncio.create_task(ScoreWorker(bus, "reward-even", frozenset({"train"}), _score).run())
    try:
        async with asyncio.timeout(_SECONDS):
            result: list[int] = []
            while len(result) < _SAMPLES:
                for delivery in await bus.pull("scores", "driver", _SAMPLES, 1.0):
                    result.append(scoring_pb2.Score.FromString(delivery.data).sample)
                    await delivery.ack()
    finally:
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
    assert sorted(result) == list(range(_SAMPLES))
