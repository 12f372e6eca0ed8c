"""Which page holds which text: full pages, known by their tokens and by all that stood before them."""

import itertools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from kubealign_services.generation.torch_engine.ragged import PAGE_TOKENS

_ROOT = 0
# Tokens are compared as the bytes of so many four-byte numbers.
_PAGE_BYTES = 4 * PAGE_TOKENS

# The serial number of what stands before a page, and the page's own tokens.
_Key = tuple[int, bytes]


class PrefixTable:
    """A tree whose nodes are pages. A node's key has its tokens themselves, and its parent's serial number,
    which is never used again: two texts cannot be taken for one another."""

    def __init__(self) -> None:
        self._pages: dict[_Key, int] = {}
        self._keys: dict[int, _Key] = {}
        self._serials: dict[int, int] = {}
        self._next = itertools.count(_ROOT + 1)

    def __contains__(self, page: int) -> bool:
        return page in self._keys

    def find(self, tokens: NDArray[np.int64], most: int) -> list[int]:
        """The pages of the longest known beginning of `tokens`, `most` of them at most."""
        found = []
        serial = _ROOT
        for piece in _pieces(tokens, most):
            page = self._pages.get((serial, piece))
            if page is None:
                break
            found.append(page)
            serial = self._serials[page]
        return found

    def know(self, tokens: NDArray[np.int64], pages: list[int]) -> None:
        """pages hold the first tokens, each one full. Where a text is known already, the page that had it
        stays the one that is found."""
        serial = _ROOT
        for page, piece in zip(pages, _pieces(tokens, len(pages)), strict=True):
            key = (serial, piece)
            known = self._pages.get(key)
            if known is None:
                # What stood before it was forgotten, and has come again under another number.
                self.forget(page)
                self._pages[key] = page
                self._keys[page] = key
                self._serials[page] = next(self._next)
                known = page
            serial = self._serials[known]

    def forget(self, page: int) -> None:
        """It will hold something else. What stands after it is found no more."""
        key = self._keys.pop(page, None)
        if key is not None:
            del self._pages[key], self._serials[page]

    def clear(self) -> None:
        """Forget all; no serial number comes again."""
        self._pages.clear()
        self._keys.clear()
        self._serials.clear()


def _pieces(tokens: NDArray[np.int64], most: int) -> Iterator[bytes]:
    """The tokens of each full page, up to `most`."""
    count = min(most, len(tokens) // PAGE_TOKENS)
    data = tokens[: count * PAGE_TOKENS].astype(np.int32).tobytes()
    return (data[at : at + _PAGE_BYTES] for at in range(0, len(data), _PAGE_BYTES))
