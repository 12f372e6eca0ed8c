"""Assembles the bytes of a part that arrive in order; each piece is verified when complete and only then
available to readers.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import xxhash

from kubealign_services.refit.delta import BadDelta, check
from kubealign_services.refit.manifest import CorruptTransfer
from kubealign_services.rpc.errors import NotFound


@dataclass(frozen=True)
class Piece:
    """A piece of a part.

    index: in the part's list. start, end: byte range in the buffer. checksum: of the bytes, hexadecimal;
    None for a delta, which contains its own checksum.
    """

    place: int
    name: str
    start: int
    end: int
    checksum: str | None


class Incoming:
    """Selected pieces of a part, in order, in one buffer. Must be used from one event loop.

    verified_count: number of pieces, from the first, that have arrived and are verified.
    """

    def __init__(self, buffer: memoryview, pieces: Sequence[Piece]) -> None:
        self.buffer = buffer
        self.pieces = pieces
        self.done = 0
        self.received_bytes = 0
        self._upto = -1
        self._hash = xxhash.xxh3_64()
        self._index = {piece.place: index for index, piece in enumerate(pieces)}
        self._gone = ""
        self._news = asyncio.Event()
        self._begin()

    @property
    def whole(self) -> bool:
        """True when all pieces are verified."""
        return self.done == len(self.pieces)

    def arrived(self) -> None:
        """Mark all pieces as received and verified by other means."""
        self.done = len(self.pieces)
        self._tell()

    def restart(self) -> None:
        """Continue with the first missing piece."""
        self._begin()

    def put(self, offset: int, data: bytes, source: str) -> None:
        """Store the next bytes.

        Raises CorruptTransfer for bytes other than the next missing ones, and for a piece with a wrong
        checksum, which then counts as missing.
        """
        if self.whole:
            raise CorruptTransfer(f"{source} sent more bytes than requested")
        end = offset + len(data)
        if end > len(self.buffer):
            raise CorruptTransfer(f"{source} sent bytes up to {end} of a snapshot of {len(self.buffer)}")
        # Bytes may be skipped between pieces, but not within one.
        start = self.pieces[self.done].start
        if offset != (max(self._upto, start) if offset == start else self._upto):
            raise CorruptTransfer(f"{source} sent bytes from offset {offset}, expected {self._upto}")
        self.buffer[offset:end] = data
        self.received_bytes += len(data)
        self._upto = end
        at = offset
        while not self.whole and self.pieces[self.done].start < end:
            piece = self.pieces[self.done]
            last = min(piece.end, end)
            self._hash.update(self.buffer[max(piece.start, at) : last])
            if piece.end > end:
                break
            at = last
            self._finish(piece, source)

    def has(self, place: int) -> bool:
        """Return True when the piece is verified."""
        return self._index.get(place, len(self.pieces)) < self.done

    def lacks(self, places: Sequence[int]) -> list[int]:
        """Return those indices that are not among the pieces."""
        return [place for place in places if place not in self._index]

    def span(self, place: int) -> tuple[int, int]:
        """Return the byte range of a piece."""
        piece = self.pieces[self._index[place]]
        return piece.start, piece.end

    async def news(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for the next verified piece. Raises NotFound when none will follow."""
        self.check()
        try:
            async with asyncio.timeout(timeout):
                await self._news.wait()
        except TimeoutError:
            return

    def check(self) -> None:
        """Raise NotFound when the bytes have been invalidated."""
        if self._gone:
            raise NotFound(self._gone)

    def gone(self, cause: str) -> None:
        """Invalidate the bytes: no reader gets any from now on."""
        self._gone = cause
        self._tell()

    def _finish(self, piece: Piece, source: str) -> None:
        try:
            if piece.checksum is None:
                check(self.buffer[piece.start : piece.end])
            elif self._hash.hexdigest() != piece.checksum:
                raise CorruptTransfer(
                    f"1 of {len(self.pieces)} tensors from {source} have the wrong checksum: {piece.name}"
                )
        except BadDelta as error:
            raise CorruptTransfer(f"the delta of {piece.name} is invalid: {error}") from error
        finally:
            self._hash = xxhash.xxh3_64()
        self.done += 1
        self._skip_empty()
        self._tell()

    def _begin(self) -> None:
        self._skip_empty()
        self._hash = xxhash.xxh3_64()
        self._upto = -1 if self.whole else self.pieces[self.done].start

    def _skip_empty(self) -> None:
        """Count pieces without bytes as verified."""
        while not self.whole and self.pieces[self.done].start == self.pieces[self.done].end:
            self.done += 1

    def _tell(self) -> None:
        # Wake all waiting readers; later ones wait for the next piece.
        self._news.set()
        self._news = asyncio.Event()
