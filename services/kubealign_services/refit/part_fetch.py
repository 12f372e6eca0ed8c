"""One part of the announced weights, from whoever of its sources can be reached: mapped, streamed, or made of
the changes to the version before."""

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
    """What was handed out ahead of its checksums is not what was sent."""


@dataclass
class Held:
    """Bytes of a part's pieces, at their offsets in the manifest.

    owned: in this process's own memory, so that they may be kept. lasts: nobody else writes to them as long
    as there is a view of them. confirm: raises SnapshotGone when what was copied from the bytes until now may
    not be whole. proof: where they are still being checked: done when they are verified, or with
    DisprovenTransfer; None: they are."""

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
        """Be done with them. Views go on holding what they need, and nothing else does."""
        self.snapshot = memoryview(b"")
        self.close()


@dataclass(frozen=True)
class PartRequest:
    """Some pieces of a part. places: in the part's list, ascending. base: this process's own bytes of the
    same pieces in the state that the part's deltas are changes to; None: there are none. They are used up.
    ahead: what is mapped is wanted before it is verified, where nobody can change it any more."""

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
        places = [] if is_whole else self.places
        return refit_pb2.FetchWeightsRequest(
            weights=self.weights, tensors=places, delta=delta, rank=self.part.rank
        )

    def pieces(self) -> list[Piece]:
        """Where their bytes lie in the part."""
        return [
            Piece(
                place, entry.name, entry.offset_bytes, entry.offset_bytes + entry.size_bytes, entry.checksum
            )
            for place, entry in zip(self.places, self.tensors, strict=True)
        ]

    def changes(self) -> list[Piece]:
        """Where their changes lie in the part's."""
        sizes = self.part.delta_sizes
        ends = list(accumulate(sizes))
        return [
            Piece(place, entry.name, ends[place] - sizes[place], ends[place], None)
            for place, entry in zip(self.places, self.tensors, strict=True)
        ]


class PartFetcher:
    """Fetches parts. directory: this process's view of the job's shared memory. streams: how this process
    streams. broadcasts: how it takes part in broadcasts; None: it does not."""

    def __init__(
        self, directory: Path, streams: PartStreams, broadcasts: BroadcastReceiver | None = None
    ) -> None:
        self._directory = directory
        self._streams = streams
        self._broadcasts = broadcasts
        self._maps = SnapshotMaps()

    async def fetch(self, request: PartRequest) -> Held:
        """After a source that fails or corrupts, the next one is tried, or the only one once more. Raises
        what the last source did, with all causes: CorruptTransfer, SnapshotGone (NotFound), Unreachable."""
        sources = [source for source in request.part.sources if self._reaches(source)]
        if not sources:
            raise Unreachable(
                f"weights {identity(request.weights)} have no source that can be reached from here: "
                f"{', '.join(map(_name, request.part.sources)) or 'none was announced'}"
            )
        causes: list[str] = []
        # What fails is tried once more where it is the only one; streams see to that themselves.
        is_only = len(sources) == 1
        ways = [partial(self._from, source, request, 1 + is_only) for source in sources]
        if is_only and sources[0].HasField("shared_memory"):
            ways *= 2
        if request.base is not None and request.part.delta_sizes and sources[0].HasField("stream"):
            ways = [partial(self._changed, sources[0].stream.address, request), *ways]
        for way in ways:
            try:
                return await way()
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
        # Memory of torch's own, so that views of it keep it alive; what is not asked for is never touched.
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
        """The base, made into the weights in place."""
        base, relay = request.base, self._streams.relay
        assert base is not None
        changes = Incoming(memoryview(bytearray(sum(request.part.delta_sizes))), request.changes())
        weights = Incoming(base, request.pieces())
        if relay is not None:
            relay.forget(base, "the changes of the next weights are made to them")
            relay.offer(request.weights, request.part.rank, False, weights)
        try:
            await self._filled(address, request, changes, True, tries=1)
            await asyncio.to_thread(_apply, request, changes.buffer)
        except BaseException as error:
            if relay is not None:
                relay.forget(base, f"they did not come: {error or type(error).__name__}")
            raise
        weights.arrived()
        return _own(base, STREAM, changes.received_bytes, is_delta=True)

    async def _filled(
        self, address: str, request: PartRequest, incoming: Incoming, delta: bool, tries: int
    ) -> None:
        """What comes is handed on at once, where this process hands on."""
        relay = self._streams.relay
        if relay is not None:
            relay.offer(request.weights, request.part.rank, delta, incoming)
        try:
            await self._streams.fill(address, request.wire(delta), incoming, tries)
        except BaseException as error:
            if relay is not None:
                relay.forget(incoming.buffer, f"they did not come: {error or type(error).__name__}")
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
                # Overwritten in the meantime is not corrupt: it is gone, and says so.
                confirm()
        except BaseException:
            # Perhaps it is the map that is wrong: one of its pages written to by mistake.
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
    """With as many threads as the process computes with. Raises CorruptTransfer."""
    base = request.base
    assert base is not None

    def make(entry: refit_pb2.TensorEntry, delta: Piece) -> None:
        piece = base[entry.offset_bytes : entry.offset_bytes + entry.size_bytes]
        try:
            apply(piece, changes[delta.start : delta.end], DTYPES[entry.dtype].itemsize)
        except BadDelta as error:
            raise CorruptTransfer(f"the changes of {entry.name} cannot be used: {error}") from error

    with ThreadPoolExecutor(torch.get_num_threads(), "changes") as threads:
        for _ in threads.map(make, request.tensors, request.changes()):
            pass
    verify(base, request.tensors, "the changes")


def _own_memory() -> None:
    """Nobody else changes it, and it goes with the last view."""


def _name(source: refit_pb2.WeightsSource) -> str:
    if source.HasField("shared_memory"):
        return f"shared memory {source.shared_memory.name}"
    if source.HasField("collective"):
        return f"collective {source.collective.address}"
    return f"stream {source.stream.address}"
