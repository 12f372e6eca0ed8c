"""Order of streamed rows: each pass draws every row once through a shuffle buffer. Pure.

The buffer holds the first rows; a draw takes one of them at random, and the next row of the source takes its
place. Once the source has ended the buffer empties. The rows in the buffer before a draw follow from (seed,
pass, number of the draw) and, at the end of the source, its number of rows: the cursor is sufficient to
continue, and no content of the buffer is stored.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import xxhash

Row = TypeVar("Row")

# Random numbers drawn at a time: for single draws, and for the rows of a buffer (8 MB).
_DRAWS, _BLOCK = 1 << 10, 1 << 20


@dataclass(frozen=True)
class StreamOrder:
    """Order of the rows of one source.

    Args:
        buffer_rows: Size of the shuffle buffer in rows. 1 keeps the order of the source.
    """

    seed: int
    buffer_rows: int

    def numbers(self, source_pass: int, first: int) -> Iterator[float]:
        """Yield the random number, in [0, 1), of each draw of a pass from draw `first` on.

        A draw takes the row in slot floor(number x rows in the buffer).
        """
        while True:
            yield from self._block(source_pass, first, _DRAWS).tolist()
            first += _DRAWS

    def slots(self, source_pass: int, draws: int, rows: int | None) -> list[int]:
        """Return the numbers of the rows in the buffer, by slot, after that many draws of a pass.

        Args:
            rows: Rows of the source; None: the draws have not reached its end, so the buffer is full.
        """
        size = self.buffer_rows if rows is None else min(self.buffer_rows, rows)
        # While rows are left to replace the drawn ones, a slot holds the row of its latest replacement.
        replaced = draws if rows is None else min(draws, rows - size)
        slots = np.arange(size)
        for first in range(0, replaced, _BLOCK):
            count = min(_BLOCK, replaced - first)
            drawn = (self._block(source_pass, first, count) * size).astype(np.int64)
            # The last one of equal indices counts.
            slots[drawn] = np.arange(size + first, size + first + count)
        left: list[int] = slots.tolist()
        for number in self._block(source_pass, replaced, draws - replaced).tolist():
            take_slot(left, number)
        return left

    def _block(self, source_pass: int, first: int, count: int) -> npt.NDArray[np.float64]:
        """Return the random numbers of `count` draws from draw `first` on."""
        key = f"{self.seed}:stream:{source_pass}"
        generator = np.random.PCG64(xxhash.xxh3_64_intdigest(key.encode()))
        generator.advance(first)
        # The raw numbers are the same in every version of numpy.
        raw = generator.random_raw(count) >> np.uint64(11)
        return raw.astype(np.float64) * 2.0**-53


def take_slot(slots: list[Row], number: float, replacement: Row | None = None) -> Row:
    """Take the row of the draw with this random number out of the slots and return it.

    Args:
        replacement: Next row of the source; None: it has ended, and the row in the last slot moves.
    """
    index = int(number * len(slots))
    row = slots[index]
    if replacement is None:
        replacement = slots.pop()
        if index == len(slots):
            return row
    slots[index] = replacement
    return row
