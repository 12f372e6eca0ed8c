"""The sender: two snapshot files, written in turn, and what is told of them."""

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from kubealign.spec.rollout import Transport
from kubealign.v1 import batch_pb2, refit_pb2
from kubealign_services.refit.manifest import identity, weights_digest
from kubealign_services.refit.shared_memory import SnapshotGone, host_identity
from kubealign_services.refit.snapshot import SnapshotFile, ranges
from kubealign_services.rpc.errors import NotFound, StorageFull

CHUNK_BYTES = 2 << 20


class PublishFailed(StorageFull):
    """The snapshot could not be written. The one before it is still served."""


@dataclass
class _Slot:
    file: SnapshotFile
    announcement: refit_pb2.WeightsAnnouncement | None = None


class WeightsPublisher:
    """Serves the two newest snapshots from `directory`, a folder of the job's own on a memory file system.

    address: host:port of this process's FetchWeights, for receivers elsewhere; None: it has none. `publish`
    may run in one thread while `chunks` is read in another. Whatever an earlier publisher left in the folder
    is removed.
    """

    def __init__(self, directory: Path, address: str | None, transport: Transport) -> None:
        if transport is Transport.STREAM and address is None:
            raise ValueError(
                "rollout.refit.transport is Stream, but this process has no address to stream from"
            )
        directory.mkdir(parents=True, exist_ok=True)
        for stale in directory.glob("weights-*"):
            stale.unlink(missing_ok=True)
        prefix = f"weights-{secrets.token_hex(8)}"
        self._slots = [_Slot(SnapshotFile(directory / f"{prefix}-{index}")) for index in range(2)]
        self._directory = directory
        self._address = address
        self._transport = transport
        self._next = 0

    def publish(
        self,
        *,
        fence: int,
        version: int,
        tensors: Iterable[tuple[str, Tensor]],
        canary: refit_pb2.Canary,
        adapter: refit_pb2.AdapterEncoding | None = None,
    ) -> refit_pb2.WeightsAnnouncement:
        """Copy the weights, which may change as soon as this returns; served until the next publication but
        one. adapter: the tensors are an adapter's; None: they are all weights.

        Raises PublishFailed when there is no room; ValueError for weights that cannot be broadcast.
        """
        slot = self._slots[self._next]
        slot.announcement = None
        try:
            entries = slot.file.write(tensors)
        except OSError as error:
            raise PublishFailed(f"the weights do not go into {self._directory}: {error.strerror}") from error
        if not entries:
            raise ValueError("there are no weights to publish")
        weights = batch_pb2.WeightsId(fence=fence, version=version, digest=weights_digest(entries))
        announcement = refit_pb2.WeightsAnnouncement(
            weights=weights,
            tensors=entries,
            size_bytes=entries[-1].offset_bytes + entries[-1].size_bytes,
            sources=self._sources(slot.file),
            canary=canary,
            adapter=adapter,
        )
        slot.file.seal(weights)
        slot.announcement = announcement
        self._next = 1 - self._next
        return announcement

    def chunks(self, request: refit_pb2.FetchWeightsRequest) -> Iterator[refit_pb2.WeightsChunk]:
        """The bytes of the tensors named (all, if none is), in pieces of CHUNK_BYTES at most.

        Raises SnapshotGone when the weights are not served, or no longer; NotFound for a tensor that they do
        not have.
        """
        slot, announcement = self._serving(request.weights)
        entries = list(announcement.tensors)
        if request.tensors:
            wanted = set(request.tensors)
            if unknown := wanted - {entry.name for entry in entries}:
                raise NotFound(
                    f"weights {identity(request.weights)} have no tensor {', '.join(sorted(unknown))}"
                )
            entries = [entry for entry in entries if entry.name in wanted]
        for offset, count in ranges(entries, CHUNK_BYTES):
            data = slot.file.read(offset, count)
            # Read first, then ask: what was asked for cannot have changed before the answer was yes.
            self._serving(request.weights)
            yield refit_pb2.WeightsChunk(offset_bytes=offset, data=data)

    def close(self) -> None:
        """Remove the snapshots. Receivers that read one go on reading it."""
        for slot in self._slots:
            slot.announcement = None
            slot.file.close()

    def _serving(self, weights: batch_pb2.WeightsId) -> tuple[_Slot, refit_pb2.WeightsAnnouncement]:
        for slot in self._slots:
            announcement = slot.announcement
            if announcement is not None and announcement.weights == weights:
                return slot, announcement
        held = [identity(slot.announcement.weights) for slot in self._slots if slot.announcement is not None]
        there = f"served are {' and '.join(held)}" if held else "none are served"
        raise SnapshotGone(f"weights {identity(weights)} are gone; {there}")

    def _sources(self, file: SnapshotFile) -> list[refit_pb2.WeightsSource]:
        sources = []
        if self._transport is not Transport.STREAM:
            shared = refit_pb2.SharedMemorySource(host=host_identity(self._directory), name=file.path.name)
            sources.append(refit_pb2.WeightsSource(shared_memory=shared))
        if self._transport is not Transport.SHARED_MEMORY and self._address is not None:
            stream = refit_pb2.StreamSource(address=self._address)
            sources.append(refit_pb2.WeightsSource(stream=stream))
        return sources
