"""Receiver of weights: plans, fetches and verifies the parts of an announcement."""

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
    """Received weights.

    tensors: by Hugging Face name, to be copied while the transfer is open, or kept when `tensors.lasts`;
    for a receiver that selects ranges only those, with their positions in `tensors.slices()`.
    verification: completes when all bytes are verified, which `fetch` has waited for, or fails with
    VerificationFailed. Must not be cancelled.
    transport: stream, if any part came through a stream; else collective, if any came by a broadcast.
    delta_parts: number of parts of which only a delta was transferred.
    """

    tensors: Assembled
    transport: str
    received_bytes: int
    delta_parts: int
    parts: tuple[Held, ...]
    proof: asyncio.Future[None]

    def confirm(self) -> None:
        """Raise SnapshotGone when data copied from the tensors until now may be incomplete."""
        for part in self.parts:
            part.confirm()

    def close(self) -> None:
        """Release the tensors, except those that were kept."""
        self.tensors.release()
        for part in self.parts:
            part.release()


class WeightsReceiver:
    """Fetches announced weights.

    Args:
        directory: This process's view of the job's shared memory.
        open_stream: Opens a stream to a sender.
        timeout: Seconds for one transfer.
        select_ranges: Ranges to fetch; None for all tensors completely.
        encoding: With DELTA, streamed parts are cached as the base of the next version's deltas.
        asker: Unique to this process, identifies it to senders; empty to stream from senders only.
        relay: Serves received pieces to other receivers; None to serve nothing.
        broadcasts: Broadcast receiver; None when the process does not take part in broadcasts.
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
        """Fetch and verify; the yielded transfer is valid within the block. After an exception in the block,
        the next transfer is a full one.

        Raises BadManifest, or the error of a part's last source, with all causes: CorruptTransfer,
        SnapshotGone (NotFound), Unreachable.
        """
        async with self._transferred(announcement, ahead=False) as transfer:
            yield transfer

    @asynccontextmanager
    async def fetch_ahead(self, announcement: refit_pb2.WeightsAnnouncement) -> AsyncIterator[Transfer]:
        """Fetch like `fetch`, but yield mapped snapshots while they are being verified, as verification takes
        half as long as the copy. See `WeightsTransfer.verification`.
        """
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
        transfer_plan = plan(announcement, self._wanted)
        requests = {
            part: self._request(announcement, part, indices, ahead)
            for part, indices in transfer_plan.needed.items()
        }
        fetched = dict(zip(requests, await self._all(list(requests.values())), strict=True))
        is_cached = self._keep(announcement, transfer_plan, fetched)
        transports = {part.transport for part in fetched.values()}
        return Transfer(
            tensors=Assembled(
                announcement,
                transfer_plan,
                {part_index: part.snapshot for part_index, part in fetched.items()},
                lasts=all(part.lasts for part in fetched.values()) and not is_cached,
            ),
            transport=min(transports, key=_FARTHEST.index),
            received_bytes=sum(part.received_bytes for part in fetched.values()),
            delta_parts=sum(part.is_delta for part in fetched.values()),
            parts=tuple(fetched.values()),
            proof=_proof(tuple(fetched.values())),
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
        """Fetch all parts concurrently, each from its own rank. Raises the first failure after the others
        have ended.
        """
        several = len(requests) > 1
        results = await asyncio.gather(
            *(self._named(request) if several else self._parts.fetch(request) for request in requests),
            return_exceptions=True,
        )
        failures = [result for result in results if isinstance(result, BaseException)]
        fetched = [result for result in results if isinstance(result, Held)]
        if failures:
            for part in fetched:
                part.release()
            raise failures[0]
        return fetched

    async def _named(self, request: PartRequest) -> Held:
        """Fetch a part; name its rank in failures."""
        try:
            return await self._parts.fetch(request)
        except (CorruptTransfer, NotFound, Unreachable) as error:
            raise type(error)(f"the part of rank {request.part.rank}: {error}") from error

    def _keep(self, announcement: refit_pb2.WeightsAnnouncement, wanted: Plan, held: dict[int, Held]) -> bool:
        """Cache the fetched parts as the base of the next version's deltas, if the sender makes any. Returns
        True when any part was cached.

        Cached parts are overwritten by the next version's deltas.
        """
        if self._encoding is Encoding.DENSE or announcement.HasField("adapter"):
            self._kept.forget()
            return False
        owned_parts = {
            index: (part.snapshot, wanted.needed[index]) for index, part in held.items() if part.owned
        }
        self._kept.keep(announcement, owned_parts)
        return bool(owned_parts)


def _proof(parts: tuple[Held, ...]) -> asyncio.Future[None]:
    """Return a future that completes with all parts' verifications, or with the first failure."""

    async def verify_all() -> None:
        for verification in [part.proof for part in parts if part.proof is not None]:
            await verification

    combined = asyncio.ensure_future(verify_all())
    # Mark the exception as retrieved: perhaps no caller awaits it, when another failure is reported instead.
    combined.add_done_callback(lambda done: done.cancelled() or done.exception())
    return combined
