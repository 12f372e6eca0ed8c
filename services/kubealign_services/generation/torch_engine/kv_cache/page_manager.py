"""Page manager of the KV cache: pages in use, and unused pages kept for requests with the same prefix.

Pure bookkeeping.
"""

import numpy as np
from numpy.typing import NDArray

from kubealign_services.generation.contract import GenerationRequest, RequestRefused
from kubealign_services.generation.torch_engine.kv_cache.page_pool import PagePool, Pages
from kubealign_services.generation.torch_engine.kv_cache.prefix_tree import PrefixTree
from kubealign_services.generation.torch_engine.ragged_batch import PAGE_TOKENS


def pages_for(tokens: int) -> int:
    """Return the number of pages for a number of tokens."""
    return -(-tokens // PAGE_TOKENS)


def check_room(request: GenerationRequest, pages: int, page_bytes: int) -> None:
    """Raise RequestRefused for a request of which not even one sample fits into the whole cache.

    Args:
        pages: Largest number of cache pages, of `page_bytes` each.
    """
    prompt, most = len(request.prompt_tokens), request.sampling.max_tokens
    # The last token is sampled, but its keys and values are never needed.
    needed = pages_for(prompt + most - 1)
    if needed > pages:
        raise RequestRefused(
            f"request {request.request_id!r}: a prompt of {prompt} tokens and max_tokens {most} need "
            f"{_format_gib(needed * page_bytes)} of keys and values, and the engine has "
            f"{_format_gib(pages * page_bytes)}: set rollout.engine.torch.cacheGib to as much, or allow "
            "fewer tokens"
        )


def _format_gib(count: int) -> str:
    return f"{count / 2**30:.3g} GiB"


class PageManager:
    """Allocates pages and keeps unused pages with known text until their room is needed; evicts in
    least-recently-used order.

    limit: largest number of pages. spare_share: unused pages are kept up to this share of the largest number
    that was ever in use. min_spare_pages: this number of unused pages is always kept.
    """

    def __init__(self, limit: int, spare_share: float = 0.0, min_spare_pages: int = 0) -> None:
        self.limit = limit
        # Incremented whenever the cached contents become invalid.
        self.epoch = 0
        self._pool = PagePool(limit)
        self._prefixes = PrefixTree()
        # Oldest first.
        self._unused: dict[int, None] = {}
        self._spare_share = spare_share
        self._min_spare_pages = min_spare_pages
        self._most_used = 0

    @property
    def storage_pages(self) -> int:
        """Storage is needed for the pages below this number."""
        return self._pool.top

    @property
    def used(self) -> int:
        """Number of pages in use by sequences."""
        return self._pool.top - self._pool.free - len(self._unused)

    @property
    def available(self) -> int:
        """Number of pages that can be allocated, including all unused pages."""
        return self.limit - self.used

    def allocate(self, count: int) -> Pages:
        """Allocate pages. Raises ValueError where fewer are available."""
        if count > self.available:
            raise ValueError(f"{count} pages asked, {self.available} available")
        self._most_used = max(self._most_used, self.used + count)
        short = count - self._pool.free
        if short > 0:
            roomy = min(
                self.limit, max(self._min_spare_pages, int(self._most_used * (1 + self._spare_share)))
            )
            self._evict(short - min(short, max(0, roomy - self._pool.top)))
        return self._pool.allocate(count)

    def _evict(self, count: int) -> None:
        """Evict this number of unused pages, or all."""
        oldest = [page for page, _ in zip(self._unused, range(count), strict=False)]
        for page in oldest:
            del self._unused[page]
            self._prefixes.remove(page)
        self._pool.return_pages(oldest)

    def share(self, pages: Pages) -> None:
        """Add one user to the pages."""
        for page in pages[self._pool.reference_counts(pages) == 0].tolist():
            del self._unused[page]
        self._pool.share(pages)
        self._most_used = max(self._most_used, self.used)

    def release(self, pages: Pages) -> None:
        """Remove one user, whose pages these are in order."""
        freed = []
        # From the end, so that a page is always evicted before the pages of its prefix.
        for page in self._pool.release(pages)[::-1].tolist():
            if page in self._prefixes:
                self._unused[page] = None
            else:
                freed.append(page)
        self._pool.return_pages(freed)

    def find_prefix(self, tokens: NDArray[np.int64]) -> Pages:
        """Return the pages of the longest cached prefix that leaves at least one token to compute.

        The pages may be unused: `share` them before any page is allocated.
        """
        most = (len(tokens) - 1) // PAGE_TOKENS
        return np.array(self._prefixes.find(tokens, most), np.int32)

    def count_unused(self, pages: Pages) -> int:
        """Return the number of these pages that are unused."""
        return int((self._pool.reference_counts(pages) == 0).sum())

    def register(self, tokens: NDArray[np.int64], pages: Pages) -> None:
        """Register the tokens that the first full pages hold."""
        self._prefixes.register(tokens, pages[: len(tokens) // PAGE_TOKENS].tolist())

    def flush(self) -> None:
        """Make all cached contents invisible to new requests. Pages in use stay in use."""
        self.epoch += 1
        self._prefixes.clear()
        self._pool.return_pages(list(self._unused))
        self._unused.clear()

    def reset_storage(self) -> None:
        """Reset after the storage was released. No page may be in use."""
        assert not self.used
        self.flush()
        self._pool = PagePool(self.limit)
        self._most_used = 0
