"""What a receiver hands on to others: pieces of the newest weights that it took, while more of them come."""

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field

from kubealign.v1 import batch_pb2, refit_pb2
from kubealign_services.refit.incoming import Incoming
from kubealign_services.refit.manifest import aligned, identity
from kubealign_services.refit.snapshot import cut
from kubealign_services.rpc.errors import NotFound

CHUNK_BYTES = 2 << 20


@dataclass
class Relay:
    """One process's. address: host:port where it serves. alive_seconds: after so long without news a stream
    is told that its sender is there. Of one event loop."""

    address: str
    alive_seconds: float = 2.0
    _weights: batch_pb2.WeightsId | None = None
    # By rank, and whether they are the changes.
    _held: dict[tuple[int, bool], Incoming] = field(default_factory=dict)
    # What somebody is getting, of whatever weights.
    _sent: Counter[Incoming] = field(default_factory=Counter)

    def offer(self, weights: batch_pb2.WeightsId, rank: int, delta: bool, incoming: Incoming) -> None:
        """Hand these on, also what is still to come. What there was of other weights is offered no longer;
        who is getting it gets the rest."""
        if weights != self._weights:
            self._weights = weights
            self._held = {}
        self._held[rank, delta] = incoming

    def forget(self, buffer: memoryview | None, cause: str) -> None:
        """The bytes in this buffer are about to change, or are worth nothing: nobody gets more of them."""
        for incoming in {*self._held.values(), *self._sent.elements()}:
            if incoming.buffer is buffer:
                incoming.gone(cause)
        self._held = {key: held for key, held in self._held.items() if held.buffer is not buffer}

    async def chunks(self, request: refit_pb2.FetchWeightsRequest) -> AsyncIterator[refit_pb2.WeightsChunk]:
        """The bytes of the pieces named (all, if none is), or of their changes, as they come; without news an
        empty chunk.

        Raises NotFound for weights, a part, a piece or changes that are not here, or are here no longer.
        """
        incoming = self._held.get((request.rank, request.delta)) if request.weights == self._weights else None
        if incoming is None:
            what = "changes of " if request.delta else ""
            held = "none" if self._weights is None else identity(self._weights)
            raise NotFound(
                f"{what}rank {request.rank}'s part of weights {identity(request.weights)} is not at "
                f"{self.address}; what it has is of {held}"
            )
        places = list(request.tensors) or [piece.place for piece in incoming.pieces]
        if lacking := incoming.lacks(places):
            raise NotFound(f"the piece at place {lacking[0]} is not at {self.address}")
        self._sent[incoming] += 1
        try:
            async for chunk in self._chunks(incoming, places[request.skip :]):
                yield chunk
        finally:
            self._sent[incoming] -= 1
            self._sent += Counter()

    async def _chunks(
        self, incoming: Incoming, places: Sequence[int]
    ) -> AsyncIterator[refit_pb2.WeightsChunk]:
        sent = 0
        while sent < len(places):
            there = sent
            while there < len(places) and incoming.has(places[there]):
                there += 1
            for offset, count in _stretches(incoming, places[sent:there]):
                # Asked right before the copy, with nothing in between: whoever changes the bytes has said so.
                incoming.check()
                data = bytes(incoming.buffer[offset : offset + count])
                yield refit_pb2.WeightsChunk(offset_bytes=offset, data=data)
            if there == sent:
                before = incoming.done
                await incoming.news(self.alive_seconds)
                if incoming.done == before:
                    incoming.check()
                    yield refit_pb2.WeightsChunk()
            sent = there


def _stretches(incoming: Incoming, places: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(offset, count) that cover these pieces, neighbours together, none longer than CHUNK_BYTES."""
    start = end = 0
    for place in places:
        first, last = incoming.span(place)
        if first not in (end, aligned(end)):
            yield from cut(start, end, CHUNK_BYTES)
            start = first
        end = last
    yield from cut(start, end, CHUNK_BYTES)
