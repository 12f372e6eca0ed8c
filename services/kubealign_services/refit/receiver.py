"""The receiver's side of a transfer: the first source within reach, nothing handed out before it is
verified."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from kubealign.v1 import refit_pb2
from kubealign_services.refit.manifest import (
    CorruptTransfer,
    check_announcement,
    identity,
    tensor_views,
    verify,
)
from kubealign_services.refit.shared_memory import MappedSnapshot, host_identity
from kubealign_services.refit.stream import OpenStream
from kubealign_services.rpc.errors import NotFound, Unreachable

SHARED_MEMORY = "shared_memory"
STREAM = "stream"


@dataclass(frozen=True)
class Transfer:
    """Verified weights. tensors: views by Hugging Face name, to be copied from while the transfer is open."""

    tensors: list[tuple[str, Tensor]]
    transport: str
    received_bytes: int
    #: Raises SnapshotGone when what was copied from the views until now may not be whole.
    confirm: Callable[[], None]
    close: Callable[[], None]


class WeightsReceiver:
    """Fetches announced weights.

    directory: this process's view of the job's shared memory. open_stream: how a stream is opened.
    timeout: seconds for one transfer.
    """

    def __init__(self, directory: Path, open_stream: OpenStream, timeout: float) -> None:
        self._directory = directory
        self._open_stream = open_stream
        self._timeout = timeout

    @asynccontextmanager
    async def fetch(self, announcement: refit_pb2.WeightsAnnouncement) -> AsyncIterator[Transfer]:
        """Fetch and verify; what is yielded is valid within the block.

        After a source that fails or corrupts, the next one is tried, or the only one once more. Raises
        BadManifest, or what the last source did, with all causes: CorruptTransfer, SnapshotGone (NotFound),
        Unreachable.
        """
        transfer = await self._fetch(announcement)
        try:
            yield transfer
        finally:
            transfer.close()

    async def _fetch(self, announcement: refit_pb2.WeightsAnnouncement) -> Transfer:
        check_announcement(announcement)
        reachable = [source for source in announcement.sources if self._reaches(source)]
        if not reachable:
            raise Unreachable(
                f"weights {identity(announcement.weights)} have no source that can be reached from here: "
                f"{', '.join(map(_name, announcement.sources)) or 'none was announced'}"
            )
        causes: list[str] = []
        attempts = reachable if len(reachable) > 1 else reachable * 2
        for source in attempts:
            try:
                return await self._from(source, announcement)
            except (CorruptTransfer, NotFound, Unreachable) as error:
                causes.append(str(error))
                last = error
        raise type(last)("; then ".join(dict.fromkeys(causes)))

    def _reaches(self, source: refit_pb2.WeightsSource) -> bool:
        if source.HasField("shared_memory"):
            return self._directory.is_dir() and source.shared_memory.host == host_identity(self._directory)
        return source.HasField("stream")

    async def _from(
        self, source: refit_pb2.WeightsSource, announcement: refit_pb2.WeightsAnnouncement
    ) -> Transfer:
        if source.HasField("shared_memory"):
            return await asyncio.to_thread(self._map, source.shared_memory.name, announcement)
        snapshot = await self._stream(source.stream.address, announcement)
        return await asyncio.to_thread(self._verified, snapshot, announcement, STREAM)

    def _map(self, name: str, announcement: refit_pb2.WeightsAnnouncement) -> Transfer:
        mapped = MappedSnapshot(self._directory, name, announcement)
        try:
            try:
                transfer = self._verified(mapped.snapshot, announcement, SHARED_MEMORY, mapped)
            finally:
                # Overwritten in the meantime is not corrupt: it is gone, and says so.
                mapped.confirm()
        except BaseException:
            mapped.close()
            raise
        return transfer

    async def _stream(self, address: str, announcement: refit_pb2.WeightsAnnouncement) -> memoryview:
        # Memory of torch's own, so that views of it keep it alive.
        snapshot: memoryview = torch.empty(announcement.size_bytes, dtype=torch.uint8).numpy().data
        request = refit_pb2.FetchWeightsRequest(weights=announcement.weights)
        received = 0
        chunks = self._open_stream(address, request, self._timeout)
        async with aclosing(chunks):
            async for chunk in chunks:
                end = chunk.offset_bytes + len(chunk.data)
                if end > announcement.size_bytes:
                    raise CorruptTransfer(
                        f"{address} sent bytes up to {end} of a snapshot of {announcement.size_bytes}"
                    )
                snapshot[chunk.offset_bytes : end] = chunk.data
                received += len(chunk.data)
        if received != announcement.size_bytes:
            raise CorruptTransfer(
                f"{address} sent {received} bytes of a snapshot of {announcement.size_bytes}"
            )
        return snapshot

    def _verified(
        self,
        snapshot: memoryview,
        announcement: refit_pb2.WeightsAnnouncement,
        transport: str,
        mapped: MappedSnapshot | None = None,
    ) -> Transfer:
        verify(snapshot, announcement.tensors, transport.replace("_", " "))
        return Transfer(
            tensors=tensor_views(snapshot, announcement.tensors),
            transport=transport,
            received_bytes=announcement.size_bytes,
            confirm=mapped.confirm if mapped else _own_memory,
            close=mapped.close if mapped else _own_memory,
        )


def _own_memory() -> None:
    """Nobody else changes it, and it goes with the last view."""


def _name(source: refit_pb2.WeightsSource) -> str:
    if source.HasField("shared_memory"):
        return f"shared memory {source.shared_memory.name}"
    return f"stream {source.stream.address}"
