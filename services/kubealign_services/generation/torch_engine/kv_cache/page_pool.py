"""Page numbers and their reference counts. Pure: only the model runner accesses the contents of pages."""

import numpy as np
from numpy.typing import NDArray

Pages = NDArray[np.int32]


class PagePool:
    """Page numbers from 0 to `limit` - 1. Each page is new (never allocated), in use, or free (returned).

    top: all pages below this number have been allocated at some time, and so have storage.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.top = 0
        self._reference_counts: Pages = np.zeros(64, np.int32)
        self._free: list[int] = []

    @property
    def free(self) -> int:
        """Number of free pages with storage."""
        return len(self._free)

    def reference_counts(self, pages: Pages) -> Pages:
        """Return the reference count of each page."""
        counts: Pages = self._reference_counts[pages]
        return counts

    def allocate(self, count: int) -> Pages:
        """Allocate pages, each with one reference; new pages only when no free page is left.

        Raises ValueError where too few pages are left.
        """
        if count > self.free + self.limit - self.top:
            raise ValueError(f"{count} pages asked of {self.free} free ones and {self.limit - self.top} new")
        # An empty slice from the end would be the whole list.
        again = self._free[len(self._free) - min(count, self.free) :]
        del self._free[len(self._free) - len(again) :]
        fresh = range(self.top, self.top + count - len(again))
        self.top += len(fresh)
        if self.top > len(self._reference_counts):
            self._reference_counts = np.concatenate((self._reference_counts, np.zeros(self.top, np.int32)))
        pages = np.array((*again, *fresh), np.int32)
        self._reference_counts[pages] = 1
        return pages

    def share(self, pages: Pages) -> None:
        """Add one reference to each page; the pages are distinct."""
        self._reference_counts[pages] += 1

    def release(self, pages: Pages) -> Pages:
        """Remove one reference from each page; the pages are distinct.

        Returns the pages without references, in the same order: they become free when passed to
        `return_pages`.
        """
        self._reference_counts[pages] -= 1
        unused: Pages = pages[self._reference_counts[pages] == 0]
        return unused

    def return_pages(self, pages: list[int]) -> None:
        """Mark the pages as free."""
        self._free.extend(pages)
