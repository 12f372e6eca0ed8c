"""Assembles the bytes of a part that arrive in order; each piece is verified when complete and only then
available to readers.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import xxhash

from kubealign_services.runtime.rpc.errors import NotFound
from kubealign_services.weights.announce.manifest import CorruptTransfer
from kubealign_services.weights.transfer.delta.codec import BadDelta, check_delta


@dataclass(frozen=True)
class PartPiece:
    """A piece of a part.

    index: in the part's list. start, end: byte range in the buffer. checksum: of the bytes, hexadecimal;
    None for a delta, which contains its own checksum.
    """

    index: int
    name: str
    start: int
    end: int
    checksum: str | None


class PartAssembler:
    """Selected pieces of a part, in order, in one buffer. Must be used from one event loop.

    verified_count: number of pieces, from the first, that have arrived and are verified.
    """

    def __init__(self, buffer: memoryview, pieces: Sequence[PartPiece]) -> None:
        self.buffer = buffer
        self.pieces = pieces
        self.verified_count = 0
        self.received_bytes = 0
        self._next_offset = -1
        self._hash = xxhash.xxh3_64()
        self._position = {piece.index: index for index, piece in enumerate(pieces)}
        self._invalid_cause = ""
        self._progress = asyncio.Event()
        self._start_piece()

    @property
    def is_complete(self) -> bool:
        """True when all pieces are verified."""
        return self.verified_count == len(self.pieces)

    def mark_complete(self) -> None:
        """Mark all pieces as received and verified by other means."""
        self.verified_count = len(self.pieces)
        self._notify()

    def restart(self) -> None:
        """Continue with the first missing piece."""
        self._start_piece()

    def put(self, offset: int, data: bytes, source: str) -> None:
        """Store the next bytes.

        Raises CorruptTransfer for bytes other than the next missing ones, and for a piece with a wrong
        checksum, which then counts as missing.
        """
        if self.is_complete:
            raise CorruptTransfer(f"{source} sent more bytes than requested")
        end = offset + len(data)
        if end > len(self.buffer):
            raise CorruptTransfer(f"{source} sent bytes up to {end} of a snapshot of {len(self.buffer)}")
        # Bytes may be skipped between pieces, but not within one.
        start = self.pieces[self.verified_count].start
        if offset != (max(self._next_offset, start) if offset == start else self._next_offset):
            raise CorruptTransfer(f"{source} sent bytes from offset {offset}, expected {self._next_offset}")
        self.buffer[offset:end] = data
        self.received_bytes += len(data)
        self._next_offset = end
        at = offset
        while not self.is_complete and self.pieces[self.verified_count].start < end:
            piece = self.pieces[self.verified_count]
            last = min(piece.end, end)
            self._hash.update(self.buffer[max(piece.start, at) : last])
            if piece.end > end:
                break
            at = last
            self._finish(piece, source)

    def is_verified(self, index: int) -> bool:
        """Return True when the piece is verified."""
        return self._position.get(index, len(self.pieces)) < self.verified_count

    def missing(self, indices: Sequence[int]) -> list[int]:
        """Return those indices that are not among the pieces."""
        return [index for index in indices if index not in self._position]

    def span(self, index: int) -> tuple[int, int]:
        """Return the byte range of a piece."""
        piece = self.pieces[self._position[index]]
        return piece.start, piece.end

    async def wait_for_progress(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for the next verified piece. Raises NotFound when none will follow."""
        self.check_available()
        try:
            async with asyncio.timeout(timeout):
                await self._progress.wait()
        except TimeoutError:
            return

    def check_available(self) -> None:
        """Raise NotFound when the bytes have been invalidated."""
        if self._invalid_cause:
            raise NotFound(self._invalid_cause)

    def invalidate(self, cause: str) -> None:
        """Invalidate the bytes: no reader gets any from now on."""
        self._invalid_cause = cause
        self._notify()

    def _finish(self, piece: PartPiece, source: str) -> None:
        try:
            if piece.checksum is None:
                check_delta(self.buffer[piece.start : piece.end])
            elif self._hash.hexdigest() != piece.checksum:
                raise CorruptTransfer(
                    f"1 of {len(self.pieces)} tensors from {source} have the wrong checksum: {piece.name}"
                )
        except BadDelta as error:
            raise CorruptTransfer(f"the delta of {piece.name} is invalid: {error}") from error
        finally:
            self._hash = xxhash.xxh3_64()
        self.verified_count += 1
        self._skip_empty()
        self._notify()

    def _start_piece(self) -> None:
        self._skip_empty()
        self._hash = xxhash.xxh3_64()
        self._next_offset = -1 if self.is_complete else self.pieces[self.verified_count].start

    def _skip_empty(self) -> None:
        """Count pieces without bytes as verified."""
        while (
            not self.is_complete
            and self.pieces[self.verified_count].start == self.pieces[self.verified_count].end
        ):
            self.verified_count += 1

    def _notify(self) -> None:
        # Wake all waiting readers; later ones wait for the next piece.
        self._progress.set()
        self._progress = asyncio.Event()
