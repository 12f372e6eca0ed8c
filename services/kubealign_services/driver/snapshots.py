"""The trainer's snapshots, where it goes on before the workers have taken them."""

import asyncio

from kubealign.v1 import refit_pb2
from kubealign_services.refit.broadcast import Publish


class Snapshots:
    """What a broadcast publishes by: asks the trainer, until the trainer has been released from a version.
    From then on it has other weights, and a retry announces the same snapshot once more, in full: the trainer
    serves it until the next one but one is made.
    """

    def __init__(self, publish: Publish) -> None:
        self._publish = publish
        self._newest: refit_pb2.WeightsAnnouncement | None = None
        self._released = False
        self._made = asyncio.Event()
        self._made.set()
        # Held while the trainer is asked: it is not released before it has answered.
        self._asking = asyncio.Lock()

    async def __call__(self, fence: int, version: int) -> refit_pb2.WeightsAnnouncement:
        """As `Publish`."""
        async with self._asking:
            held = self._newest
            if self._released and held is not None and held.weights.version == version:
                return _in_full(held)
            self._newest = await self._publish(fence, version)
            self._released = False
            self._made.set()
            return self._newest

    def expect(self, version: int) -> None:
        """This version will be asked for: the trainer is not released before it has made its snapshot."""
        if self._newest is None or self._newest.weights.version != version:
            self._made.clear()

    async def release(self) -> None:
        """Return once the trainer may change its weights, with none of its snapshots outstanding."""
        await self._made.wait()
        async with self._asking:
            self._released = True


def _in_full(announcement: refit_pb2.WeightsAnnouncement) -> refit_pb2.WeightsAnnouncement:
    """The same weights, without what would tell a receiver to take their changes alone."""
    full = refit_pb2.WeightsAnnouncement()
    full.CopyFrom(announcement)
    full.ClearField("base")
    for part in full.parts:
        part.ClearField("delta_sizes")
    return full
