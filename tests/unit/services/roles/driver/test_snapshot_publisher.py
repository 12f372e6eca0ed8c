"""Release of the trainer from a snapshot, and retries of its announcement."""

import asyncio

from kubealign.v1 import batch_pb2, refit_pb2
from kubealign_services.roles.driver.weight_sync import SnapshotPublisher


class Trainer:
    """Records its requests; replies once it may."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def publish(self, fence: int, version: int) -> refit_pb2.WeightsAnnouncement:
        self.asked.append(version)
        await self.may_answer.wait()
        weights = batch_pb2.WeightsId(fence=fence, version=version, digest="d")
        base = batch_pb2.WeightsId(fence=fence, version=version - 1, digest="d")
        parts = [refit_pb2.WeightsPart(rank=0, size_bytes=8, delta_sizes=[1, 2])]
        return refit_pb2.WeightsAnnouncement(weights=weights, base=base, parts=parts)


async def passes() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_trainer_is_released_once_its_snapshot_is_taken() -> None:
    """The release may also come before the snapshot request."""
    trainer = Trainer()
    snapshots = SnapshotPublisher(trainer.publish)
    await snapshots(1, 1)
    await snapshots.release()
    snapshots.expect(2)
    releasing = asyncio.create_task(snapshots.release())
    await passes()
    assert not releasing.done()
    trainer.may_answer.clear()
    asking = asyncio.create_task(snapshots(1, 2))
    await passes()
    assert not releasing.done()
    trainer.may_answer.set()
    await asking
    await releasing
    assert trainer.asked == [1, 2]


async def test_the_trainer_is_not_released_during_another_request() -> None:
    trainer = Trainer()
    snapshots = SnapshotPublisher(trainer.publish)
    await snapshots(1, 1)
    trainer.may_answer.clear()
    again = asyncio.create_task(snapshots(1, 1))
    await passes()
    releasing = asyncio.create_task(snapshots.release())
    await passes()
    assert not releasing.done() and trainer.asked == [1, 1]
    trainer.may_answer.set()
    await again
    await releasing


async def test_a_retry_requests_a_snapshot_until_the_trainer_is_released() -> None:
    trainer = Trainer()
    snapshots = SnapshotPublisher(trainer.publish)
    first = await snapshots(1, 4)
    assert await snapshots(1, 4) == first and trainer.asked == [4, 4]
    await snapshots.release()
    again = await snapshots(1, 4)
    assert trainer.asked == [4, 4]
    assert again.weights == first.weights and again.parts[0].size_bytes == 8
    assert not again.HasField("base") and not again.parts[0].delta_sizes
    assert first.HasField("base") and list(first.parts[0].delta_sizes) == [1, 2]
    assert (await snapshots(1, 5)).weights.version == 5 and trainer.asked == [4, 4, 5]
