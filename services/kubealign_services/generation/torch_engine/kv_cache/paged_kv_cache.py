"""Keys and values of cached tokens, stored in pages."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kubealign_services.generation.torch_engine.ragged_batch import PAGE_TOKENS


@dataclass(frozen=True)
class LayerKVShape:
    """Shape of the cached state of one token in one attention layer: `heads` keys of `key_width` and values
    of `value_width` numbers.
    """

    heads: int
    key_width: int
    value_width: int


class PagedKVCache:
    """Tensors [pages, PAGE_TOKENS, heads, width] by layer: a token's numbers are contiguous, one token after
    another, so a sequence reads one contiguous stretch of memory per page.

    Starts empty and grows on request; the assignment of pages to sequences is made elsewhere.
    """

    def __init__(self, layers: Mapping[int, LayerKVShape], dtype: torch.dtype, device: torch.device) -> None:
        self.pages = 0
        self._keys = {
            i: torch.empty(0, PAGE_TOKENS, s.heads, s.key_width, dtype=dtype, device=device)
            for i, s in layers.items()
        }
        self._values = {
            i: torch.empty(0, PAGE_TOKENS, s.heads, s.value_width, dtype=dtype, device=device)
            for i, s in layers.items()
        }

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers."""
        blocks = (*self._keys.values(), *self._values.values())
        return sum(block[:0].shape[1:].numel() * block.element_size() for block in blocks)

    def numbers_per_token(self, layer: int) -> int:
        """Return how many numbers the layer stores per token."""
        return sum(block.shape[2] * block.shape[3] for block in self.layer(layer))

    def reserve(self, pages: int) -> None:
        """Grow to this number of pages.

        Cached contents are kept. The caller knows the limit, and asks for more than it needs now.
        """
        if pages <= self.pages:
            return
        # One layer at a time, so that old and new are both held for one layer only.
        for blocks in (self._keys, self._values):
            for layer, old in blocks.items():
                new = old.new_empty(pages, *old.shape[1:])
                new[: self.pages] = old
                blocks[layer] = new
        self.pages = pages

    def clear(self) -> None:
        """Drop all contents and release the memory."""
        for blocks in (self._keys, self._values):
            for layer, old in blocks.items():
                blocks[layer] = old.new_empty(0, *old.shape[1:])
        self.pages = 0

    def copy(self, sources: list[int], targets: list[int]) -> None:
        """Copy whole pages. No page may be both source and target."""
        for blocks in (self._keys, self._values):
            for block in blocks.values():
                block[targets] = block[sources]

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return the layer's key and value tensors [pages, PAGE_TOKENS, heads, width], not copies."""
        return self._keys[layer], self._values[layer]
