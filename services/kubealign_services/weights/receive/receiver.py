"""Receiver of weights: plans, fetches and verifies the parts of an announcement."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from kubealign.spec.sections.rollout import WeightEncoding
from kubealign.v1 import refit_pb2
from kubealign_services.runtime.rpc.errors import NotFound, Unreachable
from kubealign_services.weights.announce.manifest import CorruptTransfer, check_announcement
from kubealign_services.weights.receive.part_fetcher import (
    COLLECTIVE,
    SHARED_MEMORY,
    STREAM,
    FetchedPart,
    PartFetcher,
    PartRequest,
)
from kubealign_services.weights.receive.tensor_assembly import AssembledTensors
from kubealign_services.weights.receive.transfer_plan import RangeSelector, TransferPlan, plan_transfer
from kubealign_services.weights.transfer.collective.receiver import BroadcastReceiver
from kubealign_services.weights.transfer.delta.base_cache import DeltaBaseCache
from kubealign_services.weights.transfer.stream.part_streamer import PartStreamer
from kubealign_services.weights.transfer.stream.peer_streams import OpenStream
from kubealign_services.weights.transfer.stream.relay import Relay

__all__ = ["COLLECTIVE", "SHARED_MEMORY", "STREAM", "PeerTransfers", "WeightsReceiver", "WeightsTransfer"]

_TRANSPORT_ORDER = (STREAM, COLLECTIVE, SHARED_MEMORY)


@dataclass(frozen=True)
class WeightsTransfer:
    """Received weights.

    tensors: by Hugging Face name, to be copied while the transfer is open, or kept when `tensors.lasts`;
    for a receiver that selects ranges only those, with their positions in `tensors.slices()`.
    verification: completes when all bytes are verified, which `fetch` has waited for, or fails with
    VerificationFailed. Must not be cancelled.
    transport: stream, if any part came through a stream; else collective, if any came by a broadcast.
    delta_parts: number of parts of which only a delta was transferred.
    """

    tensors: AssembledTensors
    transport: str
    received_bytes: int
    delta_parts: int
    parts: tuple[FetchedPart, ...]
    verification: asyncio.Future[None]

    def check_valid(self) -> None:
        """Raise SnapshotGone when data copied from the tensors until now may be incomplete."""
        for part in self.parts:
            part.check_valid()

    def close(self) -> None:
        """Release the tensors, except those that were kept."""
        self.tensors.release()
        for part in self.parts:
            part.release()


@dataclass(frozen=True)
class PeerTransfers:
    """Transfers between receivers, beside those from the senders.

    Args:
        asker: Unique to this process, identifies it to senders; empty to stream from senders only.
        relay: Serves received pieces to other receivers; None to serve nothing.
        broadcasts: Broadcast receiver; None when the process does not take part in broadcasts.
    """

    asker: str = ""
    relay: Relay | None = None
    broadcasts: BroadcastReceiver | None = None


class WeightsReceiver:
    """Fetches announced weights.

    Args:
        directory: This process's view of the job's shared memory.
        open_stream: Opens a stream to a sender.
        timeout: Seconds for one transfer.
        select_ranges: Ranges to fetch; None for all tensors completely.
        encoding: With DELTA, streamed parts are cached as the base of the next version's deltas.
        peers: Transfers between receivers; none by default.
    """

    def __init__(
        self,
        directory: Path,
        open_stream: OpenStream,
        timeout: float,
        select_ranges: RangeSelector | None = None,
        encoding: WeightEncoding = WeightEncoding.DENSE,
        peers: PeerTransfers | None = None,
    ) -> None:
        peers = peers or PeerTransfers()
        streams = PartStreamer(open_stream, timeout, peers.asker, peers.relay)
        self._parts = PartFetcher(directory, streams, peers.broadcasts)
        self._select_ranges = select_ranges
        self._encoding = encoding
        self._base_cache = DeltaBaseCache()

    @asynccontextmanager
    async def fetch(self, announcement: refit_pb2.WeightsAnnouncement) -> AsyncIterator[WeightsTransfer]:
        """Fetch and verify; the yielded transfer is valid within the block.

        After an exception in the block, the next transfer is a full one.

        Raises BadManifest, or the error of a part's last source, with all causes: CorruptTransfer,
        SnapshotGone (NotFound), Unreachable.
        """
        async with self._open_transfer(announcement, before_verification=False) as transfer:
            yield transfer

    @asynccontextmanager
    async def fetch_before_verification(
        self, announcement: refit_pb2.WeightsAnnouncement
    ) -> AsyncIterator[WeightsTransfer]:
        """Fetch like `fetch`, but yield mapped snapshots while they are being verified, as verification takes
        half as long as the copy. See `WeightsTransfer.verification`.
        """
        async with self._open_transfer(announcement, before_verification=True) as transfer:
            yield transfer

    @asynccontextmanager
    async def _open_transfer(
        self, announcement: refit_pb2.WeightsAnnouncement, *, before_verification: bool
    ) -> AsyncIterator[WeightsTransfer]:
        try:
            transfer = await self._fetch(announcement, before_verification)
            try:
                yield transfer
            finally:
                transfer.close()
        except BaseException:
            self._base_cache.clear()
            raise

    async def _fetch(
        self, announcement: refit_pb2.WeightsAnnouncement, before_verification: bool
    ) -> WeightsTransfer:
        check_announcement(announcement)
        transfer_plan = plan_transfer(announcement, self._select_ranges)
        requests = {
            part: self._request(announcement, part, indices, before_verification)
            for part, indices in transfer_plan.needed.items()
        }
        fetched = dict(zip(requests, await self._fetch_all(list(requests.values())), strict=True))
        is_cached = self._cache_base(announcement, transfer_plan, fetched)
        transports = {part.transport for part in fetched.values()}
        return WeightsTransfer(
            tensors=AssembledTensors(
                announcement,
                transfer_plan,
                {part_index: part.snapshot for part_index, part in fetched.items()},
                lasts=all(part.lasts for part in fetched.values()) and not is_cached,
            ),
            transport=min(transports, key=_TRANSPORT_ORDER.index),
            received_bytes=sum(part.received_bytes for part in fetched.values()),
            delta_parts=sum(part.is_delta for part in fetched.values()),
            parts=tuple(fetched.values()),
            verification=_combined_verification(tuple(fetched.values())),
        )

    def _request(
        self,
        announcement: refit_pb2.WeightsAnnouncement,
        part_index: int,
        piece_indices: tuple[int, ...],
        before_verification: bool,
    ) -> PartRequest:
        part = announcement.parts[part_index]
        base = None
        if announcement.HasField("base"):
            base = self._base_cache.pop(announcement.base, part, piece_indices)
        return PartRequest(announcement.weights, part, piece_indices, base, before_verification)

    async def _fetch_all(self, requests: list[PartRequest]) -> list[FetchedPart]:
        """Fetch all parts concurrently, each from its own rank.

        Raises the first failure after the others have ended.
        """
        several = len(requests) > 1
        results = await asyncio.gather(
            *(self._fetch_named(request) if several else self._parts.fetch(request) for request in requests),
            return_exceptions=True,
        )
        failures = [result for result in results if isinstance(result, BaseException)]
        fetched = [result for result in results if isinstance(result, FetchedPart)]
        if failures:
            for part in fetched:
                part.release()
            raise failures[0]
        return fetched

    async def _fetch_named(self, request: PartRequest) -> FetchedPart:
        """Fetch a part; name its rank in failures."""
        try:
            return await self._parts.fetch(request)
        except (CorruptTransfer, NotFound, Unreachable) as error:
            raise type(error)(f"the part of rank {request.part.rank}: {error}") from error

    def _cache_base(
        self,
        announcement: refit_pb2.WeightsAnnouncement,
        transfer_plan: TransferPlan,
        fetched: dict[int, FetchedPart],
    ) -> bool:
        """Cache the fetched parts as the base of the next version's deltas, if the sender makes any.

        Returns True when any part was cached.

        Cached parts are overwritten by the next version's deltas.
        """
        if self._encoding is WeightEncoding.DENSE or announcement.HasField("adapter"):
            self._base_cache.clear()
            return False
        owned_parts = {
            index: (part.snapshot, transfer_plan.needed[index])
            for index, part in fetched.items()
            if part.is_owned
        }
        self._base_cache.replace(announcement, owned_parts)
        return bool(owned_parts)


def _combined_verification(parts: tuple[FetchedPart, ...]) -> asyncio.Future[None]:
    """Return a future that completes with all parts' verifications, or with the first failure."""

    async def verify_all() -> None:
        for verification in [part.verification for part in parts if part.verification is not None]:
            await verification

    combined = asyncio.ensure_future(verify_all())
    # Mark the exception as retrieved: perhaps no caller awaits it, when another failure is reported instead.
    combined.add_done_callback(lambda done: done.cancelled() or done.exception())
    return combined
