"""Prefix tree of cached pages: full pages, found by their tokens and all tokens before them."""

import itertools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from kubealign_services.generation.torch_engine.ragged_batch import PAGE_TOKENS

_ROOT = 0
# A page's tokens are compared as bytes of four-byte numbers.
_KEY_BYTES = 4 * PAGE_TOKENS

# The serial number of the parent page, and the page's own tokens.
_Key = tuple[int, bytes]


class PrefixTree:
    """A tree whose nodes are pages.

    The key of a node has the tokens themselves and the serial number of its parent, which is never reused:
    two texts cannot be confused.
    """

    def __init__(self) -> None:
        self._pages: dict[_Key, int] = {}
        self._keys: dict[int, _Key] = {}
        self._serials: dict[int, int] = {}
        self._next = itertools.count(_ROOT + 1)

    def __contains__(self, page: int) -> bool:
        return page in self._keys

    def find(self, tokens: NDArray[np.int64], most: int) -> list[int]:
        """Return the pages of the longest known prefix of `tokens`, at most `most` of them."""
        pages = []
        serial = _ROOT
        for piece in _page_bytes_of(tokens, most):
            page = self._pages.get((serial, piece))
            if page is None:
                break
            pages.append(page)
            serial = self._serials[page]
        return pages

    def register(self, tokens: NDArray[np.int64], pages: list[int]) -> None:
        """Register full pages, which hold the first tokens.

        Where a text is known already, its earlier page is kept.
        """
        serial = _ROOT
        for page, piece in zip(pages, _page_bytes_of(tokens, len(pages)), strict=True):
            key = (serial, piece)
            registered = self._pages.get(key)
            if registered is None:
                # The parent of this page was removed, and was registered again under another number.
                self.remove(page)
                self._pages[key] = page
                self._keys[page] = key
                self._serials[page] = next(self._next)
                registered = page
            serial = self._serials[registered]

    def remove(self, page: int) -> None:
        """Remove a page that will be overwritten. Pages after it in the text are not found any more."""
        key = self._keys.pop(page, None)
        if key is not None:
            del self._pages[key], self._serials[page]

    def clear(self) -> None:
        """Remove all pages; serial numbers are still not reused."""
        self._pages.clear()
        self._keys.clear()
        self._serials.clear()


def _page_bytes_of(tokens: NDArray[np.int64], most: int) -> Iterator[bytes]:
    """Return the tokens of each full page, up to `most`, as bytes."""
    count = min(most, len(tokens) // PAGE_TOKENS)
    data = tokens[: count * PAGE_TOKENS].astype(np.int32).tobytes()
    return (data[at : at + _KEY_BYTES] for at in range(0, len(data), _KEY_BYTES))
