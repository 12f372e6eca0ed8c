"""The numbers of pages, and how many sequences use each. Pure: the passes alone know what lies in them."""

import numpy as np
from numpy.typing import NDArray

Pages = NDArray[np.int32]


class PagePool:
    """Numbers from 0 to `limit` - 1. Each one is new (never given out), used, or free (given back).

    top: numbers below it have been given out at some time, and so have storage.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.top = 0
        self._uses: Pages = np.zeros(64, np.int32)
        self._free: list[int] = []

    @property
    def free(self) -> int:
        """Pages with storage that nobody has."""
        return len(self._free)

    def uses(self, pages: Pages) -> Pages:
        """How many use each of them."""
        counts: Pages = self._uses[pages]
        return counts

    def take(self, count: int) -> Pages:
        """So many pages, each with one user; new ones only when the free ones are gone. Raises ValueError
        where there are not so many."""
        if count > self.free + self.limit - self.top:
            raise ValueError(f"{count} pages asked of {self.free} free ones and {self.limit - self.top} new")
        # An empty slice from the end would be the whole list.
        again = self._free[len(self._free) - min(count, self.free) :]
        del self._free[len(self._free) - len(again) :]
        fresh = range(self.top, self.top + count - len(again))
        self.top += len(fresh)
        if self.top > len(self._uses):
            self._uses = np.concatenate((self._uses, np.zeros(self.top, np.int32)))
        pages = np.array((*again, *fresh), np.int32)
        self._uses[pages] = 1
        return pages

    def share(self, pages: Pages) -> None:
        """Each has one user more; no page comes twice."""
        self._uses[pages] += 1

    def release(self, pages: Pages) -> Pages:
        """Each has one user fewer; no page comes twice. Returns those that nobody uses now, in the same
        order: they are free when `give_back` has them."""
        self._uses[pages] -= 1
        unused: Pages = pages[self._uses[pages] == 0]
        return unused

    def give_back(self, pages: list[int]) -> None:
        """They are free."""
        self._free.extend(pages)
