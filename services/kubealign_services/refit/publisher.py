"""The sender: a rank's two snapshot files, written in turn, and what is told of them."""

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from torch import Tensor

from kubealign.spec.rollout import Encoding, Transport
from kubealign.v1 import batch_pb2, refit_pb2
from kubealign_services.refit.announcing import announcement_of
from kubealign_services.refit.changes import alike, write_changes
from kubealign_services.refit.manifest import identity
from kubealign_services.refit.shared_memory import SnapshotGone, host_identity
from kubealign_services.refit.snapshot import SnapshotFile, cut, ranges
from kubealign_services.rpc.errors import NotFound, StorageFull
from kubealign_services.training.slices import WeightSlice

CHUNK_BYTES = 2 << 20


class PublishFailed(StorageFull):
    """The snapshot could not be written. The one before it is still served."""


@dataclass
class _Slot:
    """weights: None until the part is sealed. changes: a file for the part's deltas, where there are any."""

    file: SnapshotFile
    changes: SnapshotFile | None
    weights: batch_pb2.WeightsId | None = None
    part: refit_pb2.WeightsPart | None = None


class WeightsPublisher:
    """Serves one rank's parts of the two newest weights from `directory`, a folder of the job's own on a
    memory file system. There is room for a third where receivers compute with weights that are neither.

    address: host:port of this process's FetchWeights, for receivers elsewhere; None: it has none. rank: of
    this process; ranks of one machine share the folder. `write` may run in one thread while `chunks` is read
    in another. Whatever an earlier publisher of this rank left in the folder is removed.
    """

    def __init__(
        self,
        directory: Path,
        address: str | None,
        transport: Transport,
        *,
        rank: int = 0,
        encoding: Encoding = Encoding.DENSE,
    ) -> None:
        if transport in (Transport.STREAM, Transport.COLLECTIVE) and address is None:
            raise ValueError(
                f"rollout.refit.transport is {transport}, but this process has no address to stream from"
            )
        directory.mkdir(parents=True, exist_ok=True)
        for stale in directory.glob(f"weights-{rank}-*"):
            stale.unlink(missing_ok=True)
        self._prefix = directory / f"weights-{rank}-{secrets.token_hex(8)}"
        self._files = 0
        # Deltas are for streams.
        has_changes = encoding is Encoding.DELTA and transport in (Transport.AUTO, Transport.STREAM)
        self._slots = [
            _Slot(self._new_file(), self._new_file("-changes") if has_changes else None) for _ in range(2)
        ]
        self.rank = rank
        self._directory = directory
        self._address = address
        self._transport = transport
        self._next = 0

    @property
    def base(self) -> batch_pb2.WeightsId | None:
        """What the deltas of the next part will be changes to: the newest weights sealed."""
        return self._slots[1 - self._next].weights

    def write(self, slices: Iterable[WeightSlice], *, changes: bool = True) -> refit_pb2.WeightsPart:
        """Copy this rank's pieces, which may change as soon as this returns; served once `seal` has said
        whose part they are, until the next part but one is written. changes: with deltas, if there are any to
        be had.

        The slices are always taken to the last, since making them may be collective. Raises PublishFailed
        when there is no room; ValueError for weights that cannot be broadcast.
        """
        slot = self._slots[self._next]
        slot.weights = slot.part = None
        pieces = iter(slices)
        try:
            if not slot.file.claim():
                # Somebody computes with what is in it. Its memory is freed when the last of them is done.
                claimed = self._new_file()
                claimed.claim()
                # Not closed: it may be streamed from, by somebody who will be told that it is gone.
                slot.file.remove()
                slot.file = claimed
            entries = slot.file.write(pieces)
            sizes = self._changes(slot, entries) if changes else []
        except OSError as error:
            raise PublishFailed(f"the weights do not go into {self._directory}: {error.strerror}") from error
        finally:
            for _ in pieces:
                pass
        slot.part = refit_pb2.WeightsPart(
            rank=self.rank,
            tensors=entries,
            size_bytes=entries[-1].offset_bytes + entries[-1].size_bytes if entries else 0,
            sources=self._sources(slot.file),
            delta_sizes=sizes,
        )
        return slot.part

    def seal(self, weights: batch_pb2.WeightsId) -> None:
        """Serve the part that was written last, as these weights'."""
        slot = self._slots[self._next]
        if slot.part is None:
            raise RuntimeError(f"nothing was written that could be sealed as {identity(weights)}")
        slot.file.seal(weights)
        slot.weights = weights
        self._next = 1 - self._next

    def publish(
        self,
        *,
        fence: int,
        version: int,
        tensors: Iterable[tuple[str, Tensor]],
        canary: refit_pb2.Canary,
        adapter: refit_pb2.AdapterEncoding | None = None,
    ) -> refit_pb2.WeightsAnnouncement:
        """Write, announce and seal in one, for a sender of one rank: whole tensors by name. Raises as `write`
        does."""
        base = self.base
        part = self.write(
            (WeightSlice.whole(name, tensor) for name, tensor in tensors), changes=adapter is None
        )
        announcement = announcement_of(
            [part], fence=fence, version=version, canary=canary, adapter=adapter, base=base
        )
        self.seal(announcement.weights)
        return announcement

    def check_served(self, weights: batch_pb2.WeightsId) -> None:
        """Raises SnapshotGone when these weights are not served, or no longer."""
        self._serving(weights)

    def chunks(self, request: refit_pb2.FetchWeightsRequest) -> Iterator[refit_pb2.WeightsChunk]:
        """The bytes of the pieces named (all, if none is) less those that are skipped, or of their changes,
        CHUNK_BYTES at most in each.

        Raises SnapshotGone when the weights are not served, or no longer; NotFound for a piece or changes
        that they do not have, and for the part of another rank.
        """
        if request.rank != self.rank:
            raise NotFound(
                f"rank {request.rank}'s part of weights {identity(request.weights)} was asked of rank "
                f"{self.rank}: two ranks of the trainer were given one address, {self._address}"
            )
        slot, part = self._serving(request.weights)
        places = list(request.tensors) or range(len(part.tensors))
        if unknown := [place for place in places if place >= len(part.tensors)]:
            raise NotFound(
                f"weights {identity(request.weights)} have {len(part.tensors)} tensors at rank {self.rank}; "
                f"there is none at place {unknown[0]}"
            )
        places = places[request.skip :]
        if request.delta:
            file, stretches = slot.changes, _delta_ranges(part, places)
            if file is None or not part.delta_sizes:
                raise NotFound(f"weights {identity(request.weights)} have no deltas at rank {self.rank}")
        else:
            file = slot.file
            stretches = ranges((part.tensors[place] for place in places), CHUNK_BYTES)
        for offset, count in stretches:
            data = file.read(offset, count)
            # Read first, then ask: what was asked for cannot have changed before the answer was yes.
            self._serving(request.weights)
            yield refit_pb2.WeightsChunk(offset_bytes=offset, data=data)

    def close(self) -> None:
        """Remove the snapshots. Receivers that read one go on reading it."""
        for slot in self._slots:
            slot.weights = None
            slot.file.close()
            if slot.changes is not None:
                slot.changes.close()

    def _new_file(self, kind: str = "") -> SnapshotFile:
        """Under a name that no reader has ever heard of."""
        self._files += 1
        return SnapshotFile(self._prefix.with_name(f"{self._prefix.name}-{self._files}{kind}"))

    def _changes(self, slot: _Slot, entries: list[refit_pb2.TensorEntry]) -> list[int]:
        """Sizes of the deltas from the slot before; empty: there are none."""
        before = self._slots[1 - self._next]
        if slot.changes is None or before.weights is None or before.part is None:
            return []
        if not alike(entries, before.part.tensors):
            return []
        return write_changes(slot.changes, before.file, slot.file, entries)

    def _serving(self, weights: batch_pb2.WeightsId) -> tuple[_Slot, refit_pb2.WeightsPart]:
        for slot in self._slots:
            held, part = slot.weights, slot.part
            if held == weights and part is not None:
                return slot, part
        held_now = [identity(slot.weights) for slot in self._slots if slot.weights is not None]
        there = f"served are {' and '.join(held_now)}" if held_now else "none are served"
        raise SnapshotGone(f"weights {identity(weights)} are gone; {there}")

    def _sources(self, file: SnapshotFile) -> list[refit_pb2.WeightsSource]:
        sources = []
        if self._transport in (Transport.AUTO, Transport.SHARED_MEMORY):
            shared = refit_pb2.SharedMemorySource(host=host_identity(self._directory), name=file.path.name)
            sources.append(refit_pb2.WeightsSource(shared_memory=shared))
        if self._transport is Transport.COLLECTIVE and self._address is not None:
            collective = refit_pb2.CollectiveSource(address=self._address)
            sources.append(refit_pb2.WeightsSource(collective=collective))
        if self._transport is not Transport.SHARED_MEMORY and self._address is not None:
            stream = refit_pb2.StreamSource(address=self._address)
            sources.append(refit_pb2.WeightsSource(stream=stream))
        return sources


def _delta_ranges(part: refit_pb2.WeightsPart, places: Iterable[int]) -> Iterator[tuple[int, int]]:
    ends = list(accumulate(part.delta_sizes))
    for place in places:
        yield from cut(ends[place] - part.delta_sizes[place], ends[place], CHUNK_BYTES)
