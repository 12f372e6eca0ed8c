"""Bytes of a part that come piece after piece: each is verified when it is whole, and only then handed on."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import xxhash

from kubealign_services.refit.delta import BadDelta, check
from kubealign_services.refit.manifest import CorruptTransfer
from kubealign_services.rpc.errors import NotFound


@dataclass(frozen=True)
class Piece:
    """place: in the part's list. start, end: where its bytes lie. checksum: of them, hexadecimal; None: they
    are a delta, which holds its own."""

    place: int
    name: str
    start: int
    end: int
    checksum: str | None


class Incoming:
    """Some pieces of a part, in order, in one buffer. Of one event loop.

    done: how many of them, from the first on, are here and verified."""

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
        return self.done == len(self.pieces)

    def arrived(self) -> None:
        """All pieces have come, and were verified, some other way."""
        self.done = len(self.pieces)
        self._tell()

    def restart(self) -> None:
        """What comes next begins with the first piece that is missing."""
        self._begin()

    def put(self, offset: int, data: bytes, source: str) -> None:
        """The next bytes. Raises CorruptTransfer for others than those that are missing, and for a piece
        whose checksum is wrong; it is missing then."""
        if self.whole:
            raise CorruptTransfer(f"{source} sent more bytes than were asked for")
        end = offset + len(data)
        if end > len(self.buffer):
            raise CorruptTransfer(f"{source} sent bytes up to {end} of a snapshot of {len(self.buffer)}")
        # Between pieces some may be left out, within one nothing.
        start = self.pieces[self.done].start
        if offset != (max(self._upto, start) if offset == start else self._upto):
            raise CorruptTransfer(f"{source} sent bytes from {offset} on, {self._upto} were the next")
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
        return self._index.get(place, len(self.pieces)) < self.done

    def lacks(self, places: Sequence[int]) -> list[int]:
        """Those of the places that will never be here."""
        return [place for place in places if place not in self._index]

    def span(self, place: int) -> tuple[int, int]:
        piece = self.pieces[self._index[place]]
        return piece.start, piece.end

    async def news(self, timeout: float) -> None:
        """Wait for a piece, at most so many seconds. Raises NotFound where no more will come."""
        self.check()
        try:
            async with asyncio.timeout(timeout):
                await self._news.wait()
        except TimeoutError:
            return

    def check(self) -> None:
        """Raises NotFound where the bytes are no longer what they were, or will not come."""
        if self._gone:
            raise NotFound(self._gone)

    def gone(self, cause: str) -> None:
        """Hand out nothing from here on."""
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
            raise CorruptTransfer(f"the changes of {piece.name} cannot be used: {error}") from error
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
        """Pieces of no bytes are here."""
        while not self.whole and self.pieces[self.done].start == self.pieces[self.done].end:
            self.done += 1

    def _tell(self) -> None:
        # Whoever waits is woken, whoever waits next waits for the next.
        self._news.set()
        self._news = asyncio.Event()
