"""Fetches one part of the announced weights from its first reachable source: mapped, streamed, broadcast, or
reconstructed from a delta.
"""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from kubealign.v1 import batch_pb2, refit_pb2
from kubealign_services.runtime.rpc.errors import NotFound, Unreachable
from kubealign_services.weights.announce.manifest import DTYPES, CorruptTransfer, describe_weights
from kubealign_services.weights.receive.part_assembler import PartAssembler, PartPiece
from kubealign_services.weights.transfer.collective.receiver import BroadcastReceiver
from kubealign_services.weights.transfer.delta.codec import BadDelta, apply_delta
from kubealign_services.weights.transfer.shared_memory import MappedSnapshot, SnapshotMaps, host_identity
from kubealign_services.weights.transfer.stream.part_streamer import PartStreamer
from kubealign_services.weights.verify.checksum import verify_checksums

SHARED_MEMORY = "shared_memory"
STREAM = "stream"
COLLECTIVE = "collective"


class VerificationFailed(CorruptTransfer):
    """Bytes that were handed out before verification turned out to be corrupt."""


@dataclass
class FetchedPart:
    """Bytes of a part's pieces, at their offsets in the manifest.

    is_owned: in this process's own memory, so that they may be cached. lasts: no other process writes to
    the bytes as long as a view exists. check_valid: raises SnapshotGone when bytes copied until now may be
    incomplete. verification: completes when the bytes are verified, or fails with VerificationFailed; None
    when they are verified already.
    """

    snapshot: memoryview
    transport: str
    received_bytes: int
    is_owned: bool
    lasts: bool
    is_delta: bool
    check_valid: Callable[[], None]
    close: Callable[[], None]
    verification: asyncio.Future[None] | None = None

    def release(self) -> None:
        """Release the bytes. Existing views keep the memory that they need."""
        self.snapshot = memoryview(b"")
        self.close()


@dataclass(frozen=True)
class PartRequest:
    """Request for some pieces of a part.

    indices: in the part's list, ascending. base: this process's own bytes of the same pieces in the state
    that the part's deltas are relative to; overwritten by the fetch; None when there are none.
    before_verification: hand out a mapped snapshot before it is verified, where no other process can
    change it any more.
    """

    weights: batch_pb2.WeightsId
    part: refit_pb2.WeightsPart
    indices: tuple[int, ...]
    base: memoryview | None
    before_verification: bool = False

    @property
    def tensors(self) -> list[refit_pb2.TensorEntry]:
        return [self.part.tensors[index] for index in self.indices]

    def to_proto(self, delta: bool) -> refit_pb2.FetchWeightsRequest:
        is_whole = len(self.indices) == len(self.part.tensors)
        indices = [] if is_whole else self.indices
        return refit_pb2.FetchWeightsRequest(
            weights=self.weights, tensors=indices, delta=delta, rank=self.part.rank
        )

    def pieces(self) -> list[PartPiece]:
        """Return the pieces with their byte ranges in the part."""
        return [
            PartPiece(
                index, entry.name, entry.offset_bytes, entry.offset_bytes + entry.size_bytes, entry.checksum
            )
            for index, entry in zip(self.indices, self.tensors, strict=True)
        ]

    def delta_pieces(self) -> list[PartPiece]:
        """Return the deltas of the pieces with their byte ranges among the part's deltas."""
        sizes = self.part.delta_sizes
        ends = list(accumulate(sizes))
        return [
            PartPiece(index, entry.name, ends[index] - sizes[index], ends[index], None)
            for index, entry in zip(self.indices, self.tensors, strict=True)
        ]


class PartFetcher:
    """Fetches parts.

    Args:
        directory: This process's view of the job's shared memory.
        streams: Streams of this process.
        broadcasts: Broadcast receiver; None when the process does not take part in broadcasts.
    """

    def __init__(
        self, directory: Path, streams: PartStreamer, broadcasts: BroadcastReceiver | None = None
    ) -> None:
        self._directory = directory
        self._streams = streams
        self._broadcasts = broadcasts
        self._snapshot_maps = SnapshotMaps()

    async def fetch(self, request: PartRequest) -> FetchedPart:
        """Fetch the part, trying the next source, or the only one once more, after a failed or corrupt
        transfer.

        Raises the error of the last source, with all causes: CorruptTransfer, SnapshotGone (NotFound),
        Unreachable.
        """
        sources = [source for source in request.part.sources if self._is_reachable(source)]
        if not sources:
            raise Unreachable(
                f"weights {describe_weights(request.weights)} have no source that is "
                "reachable from this process: "
                f"{', '.join(map(_source_name, request.part.sources)) or 'none was announced'}"
            )
        causes: list[str] = []
        # The only source is tried twice; streams retry by themselves.
        is_only = len(sources) == 1
        attempts = [partial(self._fetch_from, source, request, 1 + is_only) for source in sources]
        if is_only and sources[0].HasField("shared_memory"):
            attempts *= 2
        if request.base is not None and request.part.delta_sizes and sources[0].HasField("stream"):
            attempts = [partial(self._fetch_delta, sources[0].stream.address, request), *attempts]
        for attempt in attempts:
            try:
                return await attempt()
            except (CorruptTransfer, NotFound, Unreachable) as error:
                causes.append(str(error))
                last = error
        raise type(last)("; then ".join(dict.fromkeys(causes)))

    def _is_reachable(self, source: refit_pb2.WeightsSource) -> bool:
        if source.HasField("shared_memory"):
            return self._directory.is_dir() and source.shared_memory.host == host_identity(self._directory)
        return source.HasField("stream") or self._broadcasts is not None

    async def _fetch_from(
        self, source: refit_pb2.WeightsSource, request: PartRequest, tries: int
    ) -> FetchedPart:
        if source.HasField("shared_memory"):
            return await self._fetch_mapped(source.shared_memory.name, request)
        if source.HasField("collective"):
            return await self._fetch_broadcast(source.collective.address, request)
        # Allocated by torch, so that views keep the memory alive; pages of pieces that were not requested are
        # never touched.
        snapshot: memoryview = torch.empty(request.part.size_bytes, dtype=torch.uint8).numpy().data
        assembler = PartAssembler(snapshot, request.pieces())
        await self._fill(source.stream.address, request, assembler, False, tries)
        return _owned_part(snapshot, STREAM, assembler.received_bytes)

    async def _fetch_broadcast(self, address: str, request: PartRequest) -> FetchedPart:
        assert self._broadcasts is not None
        size = request.part.size_bytes
        snapshot = await self._broadcasts.receive(address, request.weights, size)
        await asyncio.to_thread(verify_checksums, snapshot, request.tensors, "the broadcast")
        return _owned_part(snapshot, COLLECTIVE, size)

    async def _fetch_delta(self, address: str, request: PartRequest) -> FetchedPart:
        """Apply the deltas to the base, in place."""
        base, relay = request.base, self._streams.relay
        assert base is not None
        changes = PartAssembler(memoryview(bytearray(sum(request.part.delta_sizes))), request.delta_pieces())
        weights = PartAssembler(base, request.pieces())
        if relay is not None:
            relay.withdraw(base, "they are being updated to the next version")
            relay.offer(request.weights, request.part.rank, False, weights)
        try:
            await self._fill(address, request, changes, True, tries=1)
            await asyncio.to_thread(_apply_deltas, request, changes.buffer)
        except BaseException as error:
            if relay is not None:
                relay.withdraw(base, f"the transfer failed: {error or type(error).__name__}")
            raise
        weights.mark_complete()
        return _owned_part(base, STREAM, changes.received_bytes, is_delta=True)

    async def _fill(
        self, address: str, request: PartRequest, assembler: PartAssembler, delta: bool, tries: int
    ) -> None:
        """Fill the assembler, and relay the bytes as they arrive if this process relays."""
        relay = self._streams.relay
        if relay is not None:
            relay.offer(request.weights, request.part.rank, delta, assembler)
        try:
            await self._streams.fill(address, request.to_proto(delta), assembler, tries)
        except BaseException as error:
            if relay is not None:
                relay.withdraw(assembler.buffer, f"the transfer failed: {error or type(error).__name__}")
            raise

    async def _fetch_mapped(self, name: str, request: PartRequest) -> FetchedPart:
        size = request.part.size_bytes
        mapped = await asyncio.to_thread(
            MappedSnapshot, self._directory, name, request.weights, size, self._snapshot_maps
        )
        checks = asyncio.to_thread(self._verify_mapped, mapped.snapshot, mapped.check_valid, request)
        verification: asyncio.Future[None] | None = None
        if request.before_verification and mapped.lasts:
            verification = asyncio.ensure_future(_verify_after_handout(checks))
        else:
            try:
                await checks
            except BaseException:
                mapped.close()
                raise
        return FetchedPart(
            snapshot=mapped.snapshot,
            transport=SHARED_MEMORY,
            received_bytes=sum(entry.size_bytes for entry in request.tensors),
            is_owned=False,
            lasts=mapped.lasts,
            is_delta=False,
            check_valid=mapped.check_valid,
            close=mapped.close,
            verification=verification,
        )

    def _verify_mapped(
        self, snapshot: memoryview, check_valid: Callable[[], None], request: PartRequest
    ) -> None:
        try:
            try:
                verify_checksums(snapshot, request.tensors, "shared memory")
            finally:
                # A snapshot that was overwritten in the meantime is reported as gone, not as corrupt.
                check_valid()
        except BaseException:
            # The map itself may be damaged by an accidental write to one of its pages.
            self._snapshot_maps.clear()
            raise


async def _verify_after_handout(checks: Coroutine[Any, Any, None]) -> None:
    try:
        await checks
    except CorruptTransfer as error:
        raise VerificationFailed(str(error)) from error


def _owned_part(snapshot: memoryview, transport: str, received: int, is_delta: bool = False) -> FetchedPart:
    return FetchedPart(
        snapshot=snapshot,
        transport=transport,
        received_bytes=received,
        is_owned=True,
        lasts=True,
        is_delta=is_delta,
        check_valid=_no_op,
        close=_no_op,
    )


def _apply_deltas(request: PartRequest, changes: memoryview) -> None:
    """Apply the deltas with as many threads as the process computes with. Raises CorruptTransfer."""
    base = request.base
    assert base is not None

    def apply_to_piece(entry: refit_pb2.TensorEntry, delta: PartPiece) -> None:
        piece = base[entry.offset_bytes : entry.offset_bytes + entry.size_bytes]
        try:
            apply_delta(piece, changes[delta.start : delta.end], DTYPES[entry.dtype].itemsize)
        except BadDelta as error:
            raise CorruptTransfer(f"the delta of {entry.name} is invalid: {error}") from error

    with ThreadPoolExecutor(torch.get_num_threads(), "changes") as threads:
        for _ in threads.map(apply_to_piece, request.tensors, request.delta_pieces()):
            pass
    verify_checksums(base, request.tensors, "the changes")


def _no_op() -> None:
    """Do nothing: own memory is never overwritten by other processes, and is freed with the last view."""


def _source_name(source: refit_pb2.WeightsSource) -> str:
    if source.HasField("shared_memory"):
        return f"shared memory {source.shared_memory.name}"
    if source.HasField("collective"):
        return f"collective {source.collective.address}"
    return f"stream {source.stream.address}"
