"""One part of the announced weights, from whoever of its sources can be reached: mapped, streamed, or made of
the changes to the version before."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import torch

from kubealign.v1 import batch_pb2, refit_pb2
from kubealign_services.refit.delta import BadDelta, apply
from kubealign_services.refit.manifest import DTYPES, CorruptTransfer, identity, verify
from kubealign_services.refit.shared_memory import MappedSnapshot, host_identity
from kubealign_services.refit.snapshot import ranges
from kubealign_services.refit.stream import OpenStream
from kubealign_services.rpc.errors import NotFound, Unreachable

SHARED_MEMORY = "shared_memory"
STREAM = "stream"


@dataclass(frozen=True)
class Held:
    """Verified bytes of a part's pieces, at their offsets in the manifest.

    owned: in this process's own memory, so that they may be kept. confirm: raises SnapshotGone when what was
    copied from the bytes until now may not be whole."""

    snapshot: memoryview
    transport: str
    received_bytes: int
    owned: bool
    is_delta: bool
    confirm: Callable[[], None]
    close: Callable[[], None]


@dataclass(frozen=True)
class PartRequest:
    """Some pieces of a part. places: in the part's list, ascending. base: this process's own bytes of the
    same pieces in the state that the part's deltas are changes to; None: there are none. They are used up."""

    weights: batch_pb2.WeightsId
    part: refit_pb2.WeightsPart
    places: tuple[int, ...]
    base: memoryview | None

    @property
    def tensors(self) -> list[refit_pb2.TensorEntry]:
        return [self.part.tensors[place] for place in self.places]

    def wire(self, delta: bool) -> refit_pb2.FetchWeightsRequest:
        is_whole = len(self.places) == len(self.part.tensors)
        places = [] if is_whole else self.places
        return refit_pb2.FetchWeightsRequest(weights=self.weights, tensors=places, delta=delta)


class PartFetcher:
    """Fetches parts. directory: this process's view of the job's shared memory. timeout: seconds for one
    stream."""

    def __init__(self, directory: Path, open_stream: OpenStream, timeout: float) -> None:
        self._directory = directory
        self._open_stream = open_stream
        self._timeout = timeout

    async def fetch(self, request: PartRequest) -> Held:
        """After a source that fails or corrupts, the next one is tried, or the only one once more. Raises
        what the last source did, with all causes: CorruptTransfer, SnapshotGone (NotFound), Unreachable."""
        sources = [source for source in request.part.sources if self._reaches(source)]
        if not sources:
            raise Unreachable(
                f"weights {identity(request.weights)} have no source that can be reached from here: "
                f"{', '.join(map(_name, request.part.sources)) or 'none was announced'}"
            )
        tries = [(source, False) for source in (sources if len(sources) > 1 else sources * 2)]
        if request.base is not None and request.part.delta_sizes and sources[0].HasField("stream"):
            tries = [(sources[0], True), *tries]
        causes: list[str] = []
        for source, delta in tries:
            try:
                return await self._from(source, request, delta)
            except (CorruptTransfer, NotFound, Unreachable) as error:
                causes.append(str(error))
                last = error
        raise type(last)("; then ".join(dict.fromkeys(causes)))

    def _reaches(self, source: refit_pb2.WeightsSource) -> bool:
        if source.HasField("shared_memory"):
            return self._directory.is_dir() and source.shared_memory.host == host_identity(self._directory)
        return source.HasField("stream")

    async def _from(self, source: refit_pb2.WeightsSource, request: PartRequest, delta: bool) -> Held:
        if source.HasField("shared_memory"):
            return await asyncio.to_thread(self._map, source.shared_memory.name, request)
        address = source.stream.address
        if delta:
            changes = await self._streamed_changes(address, request)
            return await asyncio.to_thread(_changed, request, changes)
        snapshot, received = await self._streamed(address, request)
        return await asyncio.to_thread(_verified, snapshot, request, STREAM, received)

    def _map(self, name: str, request: PartRequest) -> Held:
        mapped = MappedSnapshot(self._directory, name, request.weights, request.part.size_bytes)
        try:
            try:
                received = sum(entry.size_bytes for entry in request.tensors)
                held = _verified(mapped.snapshot, request, SHARED_MEMORY, received, mapped)
            finally:
                # Overwritten in the meantime is not corrupt: it is gone, and says so.
                mapped.confirm()
        except BaseException:
            mapped.close()
            raise
        return held

    async def _streamed(self, address: str, request: PartRequest) -> tuple[memoryview, int]:
        # Memory of torch's own, so that views of it keep it alive; what is not asked for is never touched.
        size = request.part.size_bytes
        snapshot: memoryview = torch.empty(size, dtype=torch.uint8).numpy().data
        expected = sum(count for _, count in ranges(request.tensors, max(size, 1)))
        await self._receive(address, request.wire(delta=False), snapshot, expected)
        return snapshot, expected

    async def _streamed_changes(self, address: str, request: PartRequest) -> memoryview:
        sizes = request.part.delta_sizes
        changes = memoryview(bytearray(sum(sizes)))
        expected = sum(sizes[place] for place in request.places)
        await self._receive(address, request.wire(delta=True), changes, expected)
        return changes

    async def _receive(
        self, address: str, request: refit_pb2.FetchWeightsRequest, target: memoryview, expected: int
    ) -> None:
        """Raises CorruptTransfer for other bytes than were asked for, as far as their count tells."""
        received = 0
        chunks = self._open_stream(address, request, self._timeout)
        async with aclosing(chunks):
            async for chunk in chunks:
                end = chunk.offset_bytes + len(chunk.data)
                if end > len(target):
                    raise CorruptTransfer(f"{address} sent bytes up to {end} of a snapshot of {len(target)}")
                target[chunk.offset_bytes : end] = chunk.data
                received += len(chunk.data)
        if received != expected:
            raise CorruptTransfer(f"{address} sent {received} bytes of a snapshot of {expected}")


def _verified(
    snapshot: memoryview,
    request: PartRequest,
    transport: str,
    received: int,
    mapped: MappedSnapshot | None = None,
    is_delta: bool = False,
) -> Held:
    source = "the changes" if is_delta else transport.replace("_", " ")
    verify(snapshot, request.tensors, source)
    return Held(
        snapshot=snapshot,
        transport=transport,
        received_bytes=received,
        owned=mapped is None,
        is_delta=is_delta,
        confirm=mapped.confirm if mapped else _own_memory,
        close=mapped.close if mapped else _own_memory,
    )


def _changed(request: PartRequest, changes: memoryview) -> Held:
    """The base, made into the weights in place."""
    base, received = request.base, 0
    assert base is not None
    ends = _ends(request.part.delta_sizes)
    for place, entry in zip(request.places, request.tensors, strict=True):
        size = request.part.delta_sizes[place]
        piece = base[entry.offset_bytes : entry.offset_bytes + entry.size_bytes]
        try:
            apply(piece, changes[ends[place] - size : ends[place]], DTYPES[entry.dtype].itemsize)
        except BadDelta as error:
            raise CorruptTransfer(f"the changes of {entry.name} cannot be used: {error}") from error
        received += size
    return _verified(base, request, STREAM, received, is_delta=True)


def _ends(sizes: Sequence[int]) -> list[int]:
    ends, end = [], 0
    for size in sizes:
        end += size
        ends.append(end)
    return ends


def _own_memory() -> None:
    """Nobody else changes it, and it goes with the last view."""


def _name(source: refit_pb2.WeightsSource) -> str:
    if source.HasField("shared_memory"):
        return f"shared memory {source.shared_memory.name}"
    return f"stream {source.stream.address}"
