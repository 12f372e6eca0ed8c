"""The pages of the engine: in use, or kept for whoever comes with the same beginning. Pure bookkeeping."""

import numpy as np
from numpy.typing import NDArray

from kubealign_services.generation.torch_engine.pages import PagePool, Pages
from kubealign_services.generation.torch_engine.prefixes import PrefixTable
from kubealign_services.generation.torch_engine.ragged import PAGE_TOKENS


def pages_for(tokens: int) -> int:
    """How many pages so many tokens take."""
    return -(-tokens // PAGE_TOKENS)


class PageCache:
    """Pages that nobody uses but whose text is known stay, until their room is needed: those that have rested
    longest go first.

    limit: most pages at all. spare: pages that nobody uses may take this share of the most that were in use
    at once before they have to make room; least: as many may always be there.
    """

    def __init__(self, limit: int, spare: float = 0.0, least: int = 0) -> None:
        self.limit = limit
        # Grows whenever what is cached stops being true.
        self.epoch = 0
        self._pool = PagePool(limit)
        self._prefixes = PrefixTable()
        # Oldest first.
        self._resting: dict[int, None] = {}
        self._spare = spare
        self._least = least
        self._most_used = 0

    @property
    def top(self) -> int:
        """Storage is needed for the pages below this number."""
        return self._pool.top

    @property
    def used(self) -> int:
        """Pages that sequences use."""
        return self._pool.top - self._pool.free - len(self._resting)

    @property
    def available(self) -> int:
        """Pages that can be taken, with all that rest."""
        return self.limit - self.used

    def take(self, count: int) -> Pages:
        """Raises ValueError where fewer are available."""
        if count > self.available:
            raise ValueError(f"{count} pages asked, {self.available} available")
        self._most_used = max(self._most_used, self.used + count)
        short = count - self._pool.free
        if short > 0:
            roomy = min(self.limit, max(self._least, int(self._most_used * (1 + self._spare))))
            self._evict(short - min(short, max(0, roomy - self._pool.top)))
        return self._pool.take(count)

    def _evict(self, count: int) -> None:
        """So many of those that rest, or all."""
        oldest = [page for page, _ in zip(self._resting, range(count), strict=False)]
        for page in oldest:
            del self._resting[page]
            self._prefixes.forget(page)
        self._pool.give_back(oldest)

    def share(self, pages: Pages) -> None:
        """One more sequence uses them."""
        for page in pages[self._pool.uses(pages) == 0].tolist():
            del self._resting[page]
        self._pool.share(pages)
        self._most_used = max(self._most_used, self.used)

    def release(self, pages: Pages) -> None:
        """One sequence, whose pages these are in order, uses them no more."""
        freed = []
        # From the end, so that what stands before a page always rests shorter than the page itself.
        for page in self._pool.release(pages)[::-1].tolist():
            if page in self._prefixes:
                self._resting[page] = None
            else:
                freed.append(page)
        self._pool.give_back(freed)

    def find(self, tokens: NDArray[np.int64]) -> Pages:
        """Pages of the longest known beginning that leaves a token to compute. They may be resting: `share`
        them before anything is taken."""
        most = (len(tokens) - 1) // PAGE_TOKENS
        return np.array(self._prefixes.find(tokens, most), np.int32)

    def resting(self, pages: Pages) -> int:
        """How many of them nobody uses."""
        return int((self._pool.uses(pages) == 0).sum())

    def know(self, tokens: NDArray[np.int64], pages: Pages) -> None:
        """The first pages hold these tokens, as far as they fill them."""
        self._prefixes.know(tokens, pages[: len(tokens) // PAGE_TOKENS].tolist())

    def flush(self) -> None:
        """Nothing that is cached is true for those that come. Who uses pages keeps them."""
        self.epoch += 1
        self._prefixes.clear()
        self._pool.give_back(list(self._resting))
        self._resting.clear()

    def forget_storage(self) -> None:
        """The storage is gone. Nobody uses a page."""
        assert not self.used
        self.flush()
        self._pool = PagePool(self.limit)
        self._most_used = 0
