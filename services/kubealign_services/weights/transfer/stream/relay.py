"""Relay of a receiver: serves pieces of the newest received weights to other receivers while more pieces
arrive.
"""

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field

from kubealign.v1 import batch_pb2, refit_pb2
from kubealign_services.runtime.rpc.errors import NotFound
from kubealign_services.weights.announce.manifest import align_offset, describe_weights
from kubealign_services.weights.receive.part_assembler import PartAssembler
from kubealign_services.weights.send.snapshot_file import split_range

CHUNK_BYTES = 2 << 20


@dataclass
class Relay:
    """Relay of one process. Must be used from one event loop.

    address: host:port where the relay serves. alive_seconds: interval of keepalive chunks while no piece
    arrives.
    """

    address: str
    alive_seconds: float = 2.0
    _weights: batch_pb2.WeightsId | None = None
    # (rank, is a delta) -> assembler of the newest weights.
    _assemblers: dict[tuple[int, bool], PartAssembler] = field(default_factory=dict)
    # Number of streams of each assembler, of any weights.
    _streaming: Counter[PartAssembler] = field(default_factory=Counter)

    def offer(self, weights: batch_pb2.WeightsId, rank: int, delta: bool, assembler: PartAssembler) -> None:
        """Serve these pieces, including those still to come.

        Other weights are no longer offered; streams in progress get the rest of them.
        """
        if weights != self._weights:
            self._weights = weights
            self._assemblers = {}
        self._assemblers[rank, delta] = assembler

    def withdraw(self, buffer: memoryview | None, cause: str) -> None:
        """Stop serving the bytes of this buffer, which are about to change or are invalid."""
        for assembler in {*self._assemblers.values(), *self._streaming.elements()}:
            if assembler.buffer is buffer:
                assembler.invalidate(cause)
        self._assemblers = {
            key: other for key, other in self._assemblers.items() if other.buffer is not buffer
        }

    async def chunks(self, request: refit_pb2.FetchWeightsRequest) -> AsyncIterator[refit_pb2.WeightsChunk]:
        """Yield the bytes of the requested pieces (all, if none is named), or of their deltas, as they
        arrive; an empty chunk as keepalive.

        Raises NotFound for weights, a part, a piece or deltas that this relay does not have, or no longer.
        """
        assembler = (
            self._assemblers.get((request.rank, request.delta)) if request.weights == self._weights else None
        )
        if assembler is None:
            what = "changes of " if request.delta else ""
            present = "none" if self._weights is None else describe_weights(self._weights)
            raise NotFound(
                f"{what}rank {request.rank}'s part of weights {describe_weights(request.weights)} is not at "
                f"{self.address}, which has {present}"
            )
        indices = list(request.tensors) or [piece.index for piece in assembler.pieces]
        if missing := assembler.missing(indices):
            raise NotFound(f"piece {missing[0]} is not at {self.address}")
        self._streaming[assembler] += 1
        try:
            async for chunk in self._chunks(assembler, indices[request.skip :]):
                yield chunk
        finally:
            self._streaming[assembler] -= 1
            self._streaming += Counter()

    async def _chunks(
        self, assembler: PartAssembler, indices: Sequence[int]
    ) -> AsyncIterator[refit_pb2.WeightsChunk]:
        sent = 0
        while sent < len(indices):
            available = sent
            while available < len(indices) and assembler.is_verified(indices[available]):
                available += 1
            for offset, count in _chunk_ranges(assembler, indices[sent:available]):
                # Checked right before the copy, without an await in between: `withdraw` precedes any change.
                assembler.check_available()
                data = bytes(assembler.buffer[offset : offset + count])
                yield refit_pb2.WeightsChunk(offset_bytes=offset, data=data)
            if available == sent:
                before = assembler.verified_count
                await assembler.wait_for_progress(self.alive_seconds)
                if assembler.verified_count == before:
                    assembler.check_available()
                    yield refit_pb2.WeightsChunk()
            sent = available


def _chunk_ranges(assembler: PartAssembler, indices: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield (offset, count) that cover these pieces, adjacent ones together, none longer than CHUNK_BYTES."""
    start = end = 0
    for index in indices:
        first, last = assembler.span(index)
        if first not in (end, align_offset(end)):
            yield from split_range(start, end, CHUNK_BYTES)
            start = first
        end = last
    yield from split_range(start, end, CHUNK_BYTES)
