"""Publishes trainer snapshots where the trainer continues before the workers have fetched them."""

import asyncio

from kubealign.v1 import refit_pb2
from kubealign_services.weights.announce.coordinator import PublishWeights


class SnapshotPublisher:
    """Publish function of a refit that requests snapshots until the trainer is released from a version.

    After the release the trainer has other weights, and a retry announces the same snapshot again, in
    full: the trainer serves a snapshot until it takes the second one after it.
    """

    def __init__(self, publish: PublishWeights) -> None:
        self._publish = publish
        self._latest: refit_pb2.WeightsAnnouncement | None = None
        self._released = False
        self._snapshot_taken = asyncio.Event()
        self._snapshot_taken.set()
        # Held during a snapshot request: the trainer is not released before it has replied.
        self._publish_lock = asyncio.Lock()

    async def __call__(self, fence: int, version: int) -> refit_pb2.WeightsAnnouncement:
        """Return the announcement of a version, taking a snapshot unless the trainer was released from it."""
        async with self._publish_lock:
            latest = self._latest
            if self._released and latest is not None and latest.weights.version == version:
                return _without_delta(latest)
            self._latest = await self._publish(fence, version)
            self._released = False
            self._snapshot_taken.set()
            return self._latest

    def expect(self, version: int) -> None:
        """Delay the release of the trainer until it has taken the snapshot of this version."""
        if self._latest is None or self._latest.weights.version != version:
            self._snapshot_taken.clear()

    async def release(self) -> None:
        """Wait until the trainer may change its weights and no snapshot request is outstanding."""
        await self._snapshot_taken.wait()
        async with self._publish_lock:
            self._released = True


def _without_delta(announcement: refit_pb2.WeightsAnnouncement) -> refit_pb2.WeightsAnnouncement:
    """Return the announcement without the fields that let a receiver fetch only a delta."""
    full = refit_pb2.WeightsAnnouncement()
    full.CopyFrom(announcement)
    full.ClearField("base")
    for part in full.parts:
        part.ClearField("delta_sizes")
    return full
