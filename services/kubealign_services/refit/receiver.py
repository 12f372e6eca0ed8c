"""The receiver's side of a transfer: what is wanted of each part, and when it is known to be what was
sent."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from kubealign.spec.rollout import Encoding
from kubealign.v1 import refit_pb2
from kubealign_services.refit.assembly import Assembled
from kubealign_services.refit.broadcast_receiver import BroadcastReceiver
from kubealign_services.refit.kept import KeptWeights
from kubealign_services.refit.manifest import CorruptTransfer, check_announcement
from kubealign_services.refit.part_fetch import (
    COLLECTIVE,
    SHARED_MEMORY,
    STREAM,
    Held,
    PartFetcher,
    PartRequest,
)
from kubealign_services.refit.part_stream import PartStreams
from kubealign_services.refit.plan import Plan, Wanted, plan
from kubealign_services.refit.relay import Relay
from kubealign_services.refit.stream import OpenStream
from kubealign_services.rpc.errors import NotFound, Unreachable

__all__ = ["COLLECTIVE", "SHARED_MEMORY", "STREAM", "Transfer", "WeightsReceiver"]

_FARTHEST = (STREAM, COLLECTIVE, SHARED_MEMORY)


@dataclass(frozen=True)
class Transfer:
    """Weights that came. tensors: by Hugging Face name, to be copied from while the transfer is open, or kept
    where they last; of a receiver that wants ranges, those, and `tensors.slices()` says where each lies.

    proof: done when all is verified, which `fetch` has waited for; or with DisprovenTransfer. Not to be
    cancelled.

    transport: stream, where any part came through one; else collective, where any came by a broadcast.
    delta_parts: of how many the changes alone came."""

    tensors: Assembled
    transport: str
    received_bytes: int
    delta_parts: int
    parts: tuple[Held, ...]
    proof: asyncio.Future[None]

    def confirm(self) -> None:
        """Raises SnapshotGone when what was copied from the tensors until now may not be whole."""
        for part in self.parts:
            part.confirm()

    def close(self) -> None:
        """Afterwards there are no tensors but those that were kept."""
        self.tensors.release()
        for part in self.parts:
            part.release()


class WeightsReceiver:
    """Fetches announced weights.

    directory: this process's view of the job's shared memory. open_stream: how a stream is opened.
    timeout: seconds for one transfer. wanted: the ranges that are fetched and handed out; None: all, whole.
    encoding: with DELTA, what was streamed is kept for the next version's changes to be made to.
    asker: unique to this process, by which a sender knows it again; empty: senders stream all to it
    themselves. relay: what this process hands on to others; None: nothing. broadcasts: how it takes part in
    broadcasts; None: it does not.
    """

    def __init__(
        self,
        directory: Path,
        open_stream: OpenStream,
        timeout: float,
        wanted: Wanted | None = None,
        encoding: Encoding = Encoding.DENSE,
        asker: str = "",
        relay: Relay | None = None,
        broadcasts: BroadcastReceiver | None = None,
    ) -> None:
        streams = PartStreams(open_stream, timeout, asker, relay)
        self._parts = PartFetcher(directory, streams, broadcasts)
        self._wanted = wanted
        self._encoding = encoding
        self._kept = KeptWeights()

    @asynccontextmanager
    async def fetch(self, announcement: refit_pb2.WeightsAnnouncement) -> AsyncIterator[Transfer]:
        """Fetch and verify; what is yielded is valid within the block. A block that fails is followed by a
        full transfer.

        Raises BadManifest, or what a part's last source did, with all causes: CorruptTransfer, SnapshotGone
        (NotFound), Unreachable.
        """
        async with self._transferred(announcement, ahead=False) as transfer:
            yield transfer

    @asynccontextmanager
    async def fetch_ahead(self, announcement: refit_pb2.WeightsAnnouncement) -> AsyncIterator[Transfer]:
        """As `fetch`, but what is mapped is handed out while it is being verified: to read it all once more
        takes half as long as the copy that was made of it. See `Transfer.proof`."""
        async with self._transferred(announcement, ahead=True) as transfer:
            yield transfer

    @asynccontextmanager
    async def _transferred(
        self, announcement: refit_pb2.WeightsAnnouncement, *, ahead: bool
    ) -> AsyncIterator[Transfer]:
        try:
            transfer = await self._fetch(announcement, ahead)
            try:
                yield transfer
            finally:
                transfer.close()
        except BaseException:
            self._kept.forget()
            raise

    async def _fetch(self, announcement: refit_pb2.WeightsAnnouncement, ahead: bool) -> Transfer:
        check_announcement(announcement)
        wanted = plan(announcement, self._wanted)
        requests = {
            part: self._request(announcement, part, places, ahead) for part, places in wanted.needed.items()
        }
        held = dict(zip(requests, await self._all(list(requests.values())), strict=True))
        kept = self._keep(announcement, wanted, held)
        transports = {part.transport for part in held.values()}
        return Transfer(
            tensors=Assembled(
                announcement,
                wanted,
                {place: part.snapshot for place, part in held.items()},
                lasts=all(part.lasts for part in held.values()) and not kept,
            ),
            transport=min(transports, key=_FARTHEST.index),
            received_bytes=sum(part.received_bytes for part in held.values()),
            delta_parts=sum(part.is_delta for part in held.values()),
            parts=tuple(held.values()),
            proof=_proof(tuple(held.values())),
        )

    def _request(
        self, announcement: refit_pb2.WeightsAnnouncement, place: int, places: tuple[int, ...], ahead: bool
    ) -> PartRequest:
        part = announcement.parts[place]
        base = None
        if announcement.HasField("base"):
            base = self._kept.taken(announcement.base, part, places)
        return PartRequest(announcement.weights, part, places, base, ahead)

    async def _all(self, requests: list[PartRequest]) -> list[Held]:
        """All at once, each from its own rank. Raises the first failure, when the others have ended."""
        several = len(requests) > 1
        results = await asyncio.gather(
            *(self._named(request) if several else self._parts.fetch(request) for request in requests),
            return_exceptions=True,
        )
        failures = [result for result in results if isinstance(result, BaseException)]
        held = [result for result in results if isinstance(result, Held)]
        if failures:
            for part in held:
                part.release()
            raise failures[0]
        return held

    async def _named(self, request: PartRequest) -> Held:
        """Fetch it; failures say of which rank."""
        try:
            return await self._parts.fetch(request)
        except (CorruptTransfer, NotFound, Unreachable) as error:
            raise type(error)(f"the part of rank {request.part.rank}: {error}") from error

    def _keep(self, announcement: refit_pb2.WeightsAnnouncement, wanted: Plan, held: dict[int, Held]) -> bool:
        """For the next version's changes, where the sender makes any: those are made in place. Whether
        anything is kept."""
        if self._encoding is Encoding.DENSE or announcement.HasField("adapter"):
            self._kept.forget()
            return False
        own = {place: (part.snapshot, wanted.needed[place]) for place, part in held.items() if part.owned}
        self._kept.keep(announcement, own)
        return bool(own)


def _proof(parts: tuple[Held, ...]) -> asyncio.Future[None]:
    """Done with all of theirs, or with the first failure."""

    async def proven() -> None:
        for proof in [part.proof for part in parts if part.proof is not None]:
            await proof

    found = asyncio.ensure_future(proven())
    # Perhaps nobody asks: what failed otherwise is told in its place.
    found.add_done_callback(lambda done: done.cancelled() or done.exception())
    return found
