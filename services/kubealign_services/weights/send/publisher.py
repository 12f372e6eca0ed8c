"""Sender of weights: writes each version to one of a rank's two snapshot files, in turn, and serves it."""

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from torch import Tensor

from kubealign.spec.sections.rollout import WeightEncoding, WeightTransport
from kubealign.v1 import batch_pb2, refit_pb2
from kubealign_services.runtime.failpoints import Failpoint, failpoint
from kubealign_services.runtime.rpc.errors import NotFound, StorageFull
from kubealign_services.training.weight_slices import WeightSlice
from kubealign_services.weights.announce.announcement import build_announcement
from kubealign_services.weights.announce.manifest import describe_weights
from kubealign_services.weights.send.snapshot_file import SnapshotFile, chunk_ranges, split_range
from kubealign_services.weights.transfer.delta.writer import have_same_layout, write_deltas
from kubealign_services.weights.transfer.shared_memory import SnapshotGone, host_identity

CHUNK_BYTES = 2 << 20


class PublishFailed(StorageFull):
    """The snapshot could not be written. The previous one is still served."""


@dataclass
class _Slot:
    """A snapshot file. weights: None until the part is sealed. deltas: file of the part's deltas, if the rank
    makes any.
    """

    file: SnapshotFile
    deltas: SnapshotFile | None
    weights: batch_pb2.WeightsId | None = None
    part: refit_pb2.WeightsPart | None = None


class WeightsPublisher:
    """Serves one rank's parts of the two newest weights from `directory`, a folder of the job on a memory
    file system. The file system must have room for a third snapshot, used while receivers compute with
    weights that are neither.

    `write` may run in one thread while `chunks` is read in another. Files of an earlier publisher of this
    rank are removed.

    Args:
        address: host:port of this process's FetchWeights, for receivers on other machines; None without
            one.
        rank: Rank of this process; ranks of one machine share the folder.
    """

    def __init__(
        self,
        directory: Path,
        address: str | None,
        transport: WeightTransport,
        *,
        rank: int = 0,
        encoding: WeightEncoding = WeightEncoding.DENSE,
    ) -> None:
        if transport in (WeightTransport.STREAM, WeightTransport.COLLECTIVE) and address is None:
            raise ValueError(
                f"rollout.refit.transport is {transport}, but this process has no address to stream from"
            )
        directory.mkdir(parents=True, exist_ok=True)
        for stale in directory.glob(f"weights-{rank}-*"):
            stale.unlink(missing_ok=True)
        self._prefix = directory / f"weights-{rank}-{secrets.token_hex(8)}"
        self._files = 0
        # Deltas are only used by streams.
        has_changes = encoding is WeightEncoding.DELTA and transport in (
            WeightTransport.AUTO,
            WeightTransport.STREAM,
        )
        self._slots = [
            _Slot(self._new_file(), self._new_file("-changes") if has_changes else None) for _ in range(2)
        ]
        self.rank = rank
        self._directory = directory
        self._address = address
        self._transport = transport
        self._next_slot = 0

    @property
    def delta_base(self) -> batch_pb2.WeightsId | None:
        """Weights that the deltas of the next part will be relative to: the newest sealed ones."""
        return self._slots[1 - self._next_slot].weights

    def write(self, slices: Iterable[WeightSlice], *, with_deltas: bool = True) -> refit_pb2.WeightsPart:
        """Copy this rank's pieces, which may change as soon as this returns.

        The part is served after `seal`, until the next part but one is written. The slices are always
        consumed completely, because producing them may be a collective operation.

        Args:
            with_deltas: Also write deltas, when possible.

        Raises:
            PublishFailed: The disk is full.
            ValueError: The weights have an unsupported dtype or a duplicate piece.
        """
        slot = self._slots[self._next_slot]
        slot.weights = slot.part = None
        pieces = iter(slices)
        try:
            if not slot.file.try_lock():
                # A receiver still uses the snapshot. Its memory is freed when the last one is done.
                claimed = self._new_file()
                claimed.try_lock()
                # Not closed: a stream may still read from it, and will be told that the snapshot is gone.
                slot.file.remove()
                slot.file = claimed
            entries = slot.file.write(pieces)
            sizes = self._write_deltas(slot, entries) if with_deltas else []
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
        """Serve the last written part as part of these weights."""
        slot = self._slots[self._next_slot]
        if slot.part is None:
            raise RuntimeError(f"nothing was written that could be sealed as {describe_weights(weights)}")
        failpoint(Failpoint.WEIGHTS_BEFORE_PUBLISH)
        slot.file.seal(weights)
        slot.weights = weights
        self._next_slot = 1 - self._next_slot
        failpoint(Failpoint.WEIGHTS_AFTER_PUBLISH)

    def publish(
        self,
        *,
        fence: int,
        version: int,
        tensors: Iterable[tuple[str, Tensor]],
        canary: refit_pb2.Canary,
        adapter: refit_pb2.AdapterEncoding | None = None,
    ) -> refit_pb2.WeightsAnnouncement:
        """Write, announce and seal, for a sender of one rank with full tensors by name.

        Raises the exceptions of `write`.
        """
        base = self.delta_base
        part = self.write(
            (WeightSlice.from_full_tensor(name, tensor) for name, tensor in tensors),
            with_deltas=adapter is None,
        )
        announcement = build_announcement(
            [part], fence=fence, version=version, canary=canary, adapter=adapter, base=base
        )
        self.seal(announcement.weights)
        return announcement

    def check_served(self, weights: batch_pb2.WeightsId) -> None:
        """Raise SnapshotGone when these weights are not served, or no longer."""
        self._find_served(weights)

    def chunks(self, request: refit_pb2.FetchWeightsRequest) -> Iterator[refit_pb2.WeightsChunk]:
        """Yield the bytes of the requested pieces (all, if none is named) after the skipped ones, or of their
        deltas, in chunks of at most CHUNK_BYTES.

        Raises:
            SnapshotGone: The weights are not served, or no longer.
            NotFound: The request is for another rank, or for a piece or deltas that do not exist.
        """
        if request.rank != self.rank:
            raise NotFound(
                f"rank {request.rank}'s part of weights {describe_weights(request.weights)} was requested "
                f"from rank {self.rank}: two ranks of the trainer have the same address, {self._address}"
            )
        slot, part = self._find_served(request.weights)
        indices = list(request.tensors) or range(len(part.tensors))
        if unknown := [index for index in indices if index >= len(part.tensors)]:
            raise NotFound(
                f"weights {describe_weights(request.weights)} have {len(part.tensors)} tensors "
                f"at rank {self.rank}; piece {unknown[0]} is out of range"
            )
        indices = indices[request.skip :]
        if request.delta:
            file, byte_ranges = slot.deltas, _delta_ranges(part, indices)
            if file is None or not part.delta_sizes:
                raise NotFound(
                    f"weights {describe_weights(request.weights)} have no deltas at rank {self.rank}"
                )
        else:
            file = slot.file
            byte_ranges = chunk_ranges((part.tensors[index] for index in indices), CHUNK_BYTES)
        for offset, count in byte_ranges:
            data = file.read(offset, count)
            # Check after the read: if the weights are still served, the bytes read are unchanged.
            self._find_served(request.weights)
            yield refit_pb2.WeightsChunk(offset_bytes=offset, data=data)

    def close(self) -> None:
        """Remove the snapshots. Receivers that read one can finish."""
        for slot in self._slots:
            slot.weights = None
            slot.file.close()
            if slot.deltas is not None:
                slot.deltas.close()

    def _new_file(self, kind: str = "") -> SnapshotFile:
        """Create a file under a name that no reader knows yet."""
        self._files += 1
        return SnapshotFile(self._prefix.with_name(f"{self._prefix.name}-{self._files}{kind}"))

    def _write_deltas(self, slot: _Slot, entries: list[refit_pb2.TensorEntry]) -> list[int]:
        """Write the deltas from the previous slot; return their sizes; empty when there are none."""
        before = self._slots[1 - self._next_slot]
        if slot.deltas is None or before.weights is None or before.part is None:
            return []
        if not have_same_layout(entries, before.part.tensors):
            return []
        return write_deltas(slot.deltas, before.file, slot.file, entries)

    def _find_served(self, weights: batch_pb2.WeightsId) -> tuple[_Slot, refit_pb2.WeightsPart]:
        for slot in self._slots:
            candidate, part = slot.weights, slot.part
            if candidate == weights and part is not None:
                return slot, part
        served = [describe_weights(slot.weights) for slot in self._slots if slot.weights is not None]
        present = f"served are {' and '.join(served)}" if served else "none are served"
        raise SnapshotGone(f"weights {describe_weights(weights)} are gone; {present}")

    def _sources(self, file: SnapshotFile) -> list[refit_pb2.WeightsSource]:
        sources = []
        if self._transport in (WeightTransport.AUTO, WeightTransport.SHARED_MEMORY):
            shared = refit_pb2.SharedMemorySource(host=host_identity(self._directory), name=file.path.name)
            sources.append(refit_pb2.WeightsSource(shared_memory=shared))
        if self._transport is WeightTransport.COLLECTIVE and self._address is not None:
            collective = refit_pb2.CollectiveSource(address=self._address)
            sources.append(refit_pb2.WeightsSource(collective=collective))
        if self._transport is not WeightTransport.SHARED_MEMORY and self._address is not None:
            stream = refit_pb2.StreamSource(address=self._address)
            sources.append(refit_pb2.WeightsSource(stream=stream))
        return sources


def _delta_ranges(part: refit_pb2.WeightsPart, indices: Iterable[int]) -> Iterator[tuple[int, int]]:
    ends = list(accumulate(part.delta_sizes))
    for index in indices:
        yield from split_range(ends[index] - part.delta_sizes[index], ends[index], CHUNK_BYTES)
