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
from kubealign_services.refit.broadcast_receiver import BroadcastReceiver
from kubealign_services.refit.checking import verify
from kubealign_services.refit.delta import BadDelta, apply
from kubealign_services.refit.incoming import Incoming, Piece
from kubealign_services.refit.manifest import DTYPES, CorruptTransfer, identity
from kubealign_services.refit.part_stream import PartStreams
from kubealign_services.refit.shared_memory import MappedSnapshot, SnapshotMaps, host_identity
from kubealign_services.rpc.errors import NotFound, Unreachable

SHARED_MEMORY = "shared_memory"
STREAM = "stream"
COLLECTIVE = "collective"


class DisprovenTransfer(CorruptTransfer):
    """Bytes that were handed out before verification turned out to be corrupt."""


@dataclass
class Held:
    """Bytes of a part's pieces, at their offsets in the manifest.

    is_owned: in this process's own memory, so that they may be cached. lasts: no other process writes to
    the bytes as long as a view exists. check_valid: raises SnapshotGone when bytes copied until now may be
    incomplete. verification: completes when the bytes are verified, or fails with VerificationFailed; None
    when they are verified already.
    """

    snapshot: memoryview
    transport: str
    received_bytes: int
    owned: bool
    lasts: bool
    is_delta: bool
    confirm: Callable[[], None]
    close: Callable[[], None]
    proof: asyncio.Future[None] | None = None

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
    places: tuple[int, ...]
    base: memoryview | None
    ahead: bool = False

    @property
    def tensors(self) -> list[refit_pb2.TensorEntry]:
        return [self.part.tensors[place] for place in self.places]

    def wire(self, delta: bool) -> refit_pb2.FetchWeightsRequest:
        is_whole = len(self.places) == len(self.part.tensors)
        indices = [] if is_whole else self.places
        return refit_pb2.FetchWeightsRequest(
            weights=self.weights, tensors=indices, delta=delta, rank=self.part.rank
        )

    def pieces(self) -> list[Piece]:
        """Return the pieces with their byte ranges in the part."""
        return [
            Piece(
                index, entry.name, entry.offset_bytes, entry.offset_bytes + entry.size_bytes, entry.checksum
            )
            for index, entry in zip(self.places, self.tensors, strict=True)
        ]

    def changes(self) -> list[Piece]:
        """Return the deltas of the pieces with their byte ranges among the part's deltas."""
        sizes = self.part.delta_sizes
        ends = list(accumulate(sizes))
        return [
            Piece(index, entry.name, ends[index] - sizes[index], ends[index], None)
            for index, entry in zip(self.places, self.tensors, strict=True)
        ]


class PartFetcher:
    """Fetches parts.

    Args:
        directory: This process's view of the job's shared memory.
        streams: Streams of this process.
        broadcasts: Broadcast receiver; None when the process does not take part in broadcasts.
    """

    def __init__(
        self, directory: Path, streams: PartStreams, broadcasts: BroadcastReceiver | None = None
    ) -> None:
        self._directory = directory
        self._streams = streams
        self._broadcasts = broadcasts
        self._maps = SnapshotMaps()

    async def fetch(self, request: PartRequest) -> Held:
        """Fetch the part, trying the next source, or the only one once more, after a failed or corrupt
        transfer.

        Raises the error of the last source, with all causes: CorruptTransfer, SnapshotGone (NotFound),
        Unreachable.
        """
        sources = [source for source in request.part.sources if self._reaches(source)]
        if not sources:
            raise Unreachable(
                f"weights {identity(request.weights)} have no source that is reachable from this process: "
                f"{', '.join(map(_name, request.part.sources)) or 'none was announced'}"
            )
        causes: list[str] = []
        # The only source is tried twice; streams retry by themselves.
        is_only = len(sources) == 1
        attempts = [partial(self._from, source, request, 1 + is_only) for source in sources]
        if is_only and sources[0].HasField("shared_memory"):
            attempts *= 2
        if request.base is not None and request.part.delta_sizes and sources[0].HasField("stream"):
            attempts = [partial(self._changed, sources[0].stream.address, request), *attempts]
        for attempt in attempts:
            try:
                return await attempt()
            except (CorruptTransfer, NotFound, Unreachable) as error:
                causes.append(str(error))
                last = error
        raise type(last)("; then ".join(dict.fromkeys(causes)))

    def _reaches(self, source: refit_pb2.WeightsSource) -> bool:
        if source.HasField("shared_memory"):
            return self._directory.is_dir() and source.shared_memory.host == host_identity(self._directory)
        return source.HasField("stream") or self._broadcasts is not None

    async def _from(self, source: refit_pb2.WeightsSource, request: PartRequest, tries: int) -> Held:
        if source.HasField("shared_memory"):
            return await self._map(source.shared_memory.name, request)
        if source.HasField("collective"):
            return await self._broadcast(source.collective.address, request)
        # Allocated by torch, so that views keep the memory alive; pages of pieces that were not requested are
        # never touched.
        snapshot: memoryview = torch.empty(request.part.size_bytes, dtype=torch.uint8).numpy().data
        incoming = Incoming(snapshot, request.pieces())
        await self._filled(source.stream.address, request, incoming, False, tries)
        return _own(snapshot, STREAM, incoming.received_bytes)

    async def _broadcast(self, address: str, request: PartRequest) -> Held:
        assert self._broadcasts is not None
        size = request.part.size_bytes
        snapshot = await self._broadcasts.receive(address, request.weights, size)
        await asyncio.to_thread(verify, snapshot, request.tensors, "the broadcast")
        return _own(snapshot, COLLECTIVE, size)

    async def _changed(self, address: str, request: PartRequest) -> Held:
        """Apply the deltas to the base, in place."""
        base, relay = request.base, self._streams.relay
        assert base is not None
        changes = Incoming(memoryview(bytearray(sum(request.part.delta_sizes))), request.changes())
        weights = Incoming(base, request.pieces())
        if relay is not None:
            relay.forget(base, "they are being updated to the next version")
            relay.offer(request.weights, request.part.rank, False, weights)
        try:
            await self._filled(address, request, changes, True, tries=1)
            await asyncio.to_thread(_apply, request, changes.buffer)
        except BaseException as error:
            if relay is not None:
                relay.forget(base, f"the transfer failed: {error or type(error).__name__}")
            raise
        weights.arrived()
        return _own(base, STREAM, changes.received_bytes, is_delta=True)

    async def _filled(
        self, address: str, request: PartRequest, incoming: Incoming, delta: bool, tries: int
    ) -> None:
        """Fill the assembler, and relay the bytes as they arrive if this process relays."""
        relay = self._streams.relay
        if relay is not None:
            relay.offer(request.weights, request.part.rank, delta, incoming)
        try:
            await self._streams.fill(address, request.wire(delta), incoming, tries)
        except BaseException as error:
            if relay is not None:
                relay.forget(incoming.buffer, f"the transfer failed: {error or type(error).__name__}")
            raise

    async def _map(self, name: str, request: PartRequest) -> Held:
        size = request.part.size_bytes
        mapped = await asyncio.to_thread(
            MappedSnapshot, self._directory, name, request.weights, size, self._maps
        )
        checks = asyncio.to_thread(self._check, mapped.snapshot, mapped.confirm, request)
        proof: asyncio.Future[None] | None = None
        if request.ahead and mapped.lasts:
            proof = asyncio.ensure_future(_disproving(checks))
        else:
            try:
                await checks
            except BaseException:
                mapped.close()
                raise
        return Held(
            snapshot=mapped.snapshot,
            transport=SHARED_MEMORY,
            received_bytes=sum(entry.size_bytes for entry in request.tensors),
            owned=False,
            lasts=mapped.lasts,
            is_delta=False,
            confirm=mapped.confirm,
            close=mapped.close,
            proof=proof,
        )

    def _check(self, snapshot: memoryview, confirm: Callable[[], None], request: PartRequest) -> None:
        try:
            try:
                verify(snapshot, request.tensors, "shared memory")
            finally:
                # A snapshot that was overwritten in the meantime is reported as gone, not as corrupt.
                confirm()
        except BaseException:
            # The map itself may be damaged by an accidental write to one of its pages.
            self._maps.forget()
            raise


async def _disproving(checks: Coroutine[Any, Any, None]) -> None:
    try:
        await checks
    except CorruptTransfer as error:
        raise DisprovenTransfer(str(error)) from error


def _own(snapshot: memoryview, transport: str, received: int, is_delta: bool = False) -> Held:
    return Held(
        snapshot=snapshot,
        transport=transport,
        received_bytes=received,
        owned=True,
        lasts=True,
        is_delta=is_delta,
        confirm=_own_memory,
        close=_own_memory,
    )


def _apply(request: PartRequest, changes: memoryview) -> None:
    """Apply the deltas with as many threads as the process computes with. Raises CorruptTransfer."""
    base = request.base
    assert base is not None

    def apply_to_piece(entry: refit_pb2.TensorEntry, delta: Piece) -> None:
        piece = base[entry.offset_bytes : entry.offset_bytes + entry.size_bytes]
        try:
            apply(piece, changes[delta.start : delta.end], DTYPES[entry.dtype].itemsize)
        except BadDelta as error:
            raise CorruptTransfer(f"the delta of {entry.name} is invalid: {error}") from error

    with ThreadPoolExecutor(torch.get_num_threads(), "changes") as threads:
        for _ in threads.map(apply_to_piece, request.tensors, request.changes()):
            pass
    verify(base, request.tensors, "the changes")


def _own_memory() -> None:
    """Do nothing: own memory is never overwritten by other processes, and is freed with the last view."""


def _name(source: refit_pb2.WeightsSource) -> str:
    if source.HasField("shared_memory"):
        return f"shared memory {source.shared_memory.name}"
    if source.HasField("collective"):
        return f"collective {source.collective.address}"
    return f"stream {source.stream.address}"
