"""Keys and values of the running sequences, one slot each, slots 0 to n-1 always the ones in use."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

# The cache grows along its positions by this many, so that slightly longer requests do not move it each time.
POSITION_BLOCK = 64


@dataclass(frozen=True)
class LayerShape:
    """What one attention layer keeps of a token: `heads` keys of `key_width` and values of `value_width`
    numbers."""

    heads: int
    key_width: int
    value_width: int


class KeyValueCache:
    """By layer [slots, heads, positions, width], so that the first n slots and the first m positions are a
    view.

    It starts empty, grows to what the running sequences need, up to `max_sequences` slots, and is reused by
    those that come after. Beside the slots it holds one prompt, while samples of its group still wait.
    """

    def __init__(
        self, layers: Mapping[int, LayerShape], max_sequences: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._layers = dict(layers)
        self._max_sequences = max_sequences
        self.slots = 0
        self.positions = 0
        self._keys = {
            i: torch.empty(0, s.heads, 0, s.key_width, dtype=dtype, device=device) for i, s in layers.items()
        }
        self._values = {
            i: torch.empty(0, s.heads, 0, s.value_width, dtype=dtype, device=device)
            for i, s in layers.items()
        }
        self._held: dict[int, tuple[Tensor, Tensor]] = {}

    def reserve(self, sequences: int, positions: int) -> None:
        """Have room for `sequences` of `positions` tokens each. What is cached stays where it is."""
        if sequences > self._max_sequences:
            raise ValueError(f"{sequences} sequences asked of a cache that holds {self._max_sequences}")
        slots = self.slots
        if sequences > slots:
            slots = min(self._max_sequences, max(sequences, 2 * slots))
        length = max(self.positions, -(-positions // POSITION_BLOCK) * POSITION_BLOCK)
        if (slots, length) == (self.slots, self.positions):
            return
        # One layer at a time, so that old and new are both held for one layer only.
        for blocks in (self._keys, self._values):
            for layer, old in blocks.items():
                new = old.new_zeros(slots, old.shape[1], length, old.shape[3])
                new[: self.slots, :, : self.positions] = old
                blocks[layer] = new
        self.slots, self.positions = slots, length

    def clear(self) -> None:
        """Forget everything and hold no memory, as at first."""
        for blocks in (self._keys, self._values):
            for layer, old in blocks.items():
                blocks[layer] = old.new_empty(0, old.shape[1], 0, old.shape[3])
        self._held = {}
        self.slots = self.positions = 0

    def view(self, layer: int, sequences: int, positions: int) -> tuple[Tensor, Tensor]:
        """Keys and values [sequences, heads, positions, width], without a copy."""
        return self._keys[layer][:sequences, :, :positions], self._values[layer][:sequences, :, :positions]

    def write_prompts(self, layer: int, slots: slice, keys: Tensor, values: Tensor) -> None:
        """keys, values: [len(slots) or 1, heads, length, width], from position 0 on."""
        length = keys.shape[2]
        self._keys[layer][slots, :, :length] = keys
        self._values[layer][slots, :, :length] = values

    def write_tokens(self, layer: int, rows: Tensor, positions: Tensor, keys: Tensor, values: Tensor) -> None:
        """keys, values: [n, heads, width], one token for each of the slots `rows` [n] at `positions` [n]."""
        self._keys[layer][rows, :, positions] = keys
        self._values[layer][rows, :, positions] = values

    def move(self, sources: list[int], targets: list[int], positions: int) -> None:
        """Copy the first `positions` of each source slot to its target. No slot may be both."""
        for blocks in (self._keys, self._values):
            for block in blocks.values():
                block[targets, :, :positions] = block[sources, :, :positions]

    def hold(self, slot: int, length: int) -> None:
        """Keep a copy of the first `length` positions of a slot, in the place of any prompt held before."""
        self._held = {
            layer: (keys[slot, :, :length].clone(), self._values[layer][slot, :, :length].clone())
            for layer, keys in self._keys.items()
        }

    def restore(self, slots: slice) -> None:
        """Write the held prompt into each of the slots."""
        for layer, (keys, values) in self._held.items():
            self.write_prompts(layer, slots, keys[None], values[None])
