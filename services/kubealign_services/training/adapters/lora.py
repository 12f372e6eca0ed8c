"""Low-rank adapters as shared by trainer and rollout engine: tensor names and the merge formula.

LoRA (Hu et al. 2021): W' = W + s * B A, with s = alpha / rank. DoRA (Liu et al. 2024): W' = m * V / |V|, with
V = W + s * B A, its norm |V| over each output's inputs, and m trained.

The names are those of a PEFT adapter file without its prefix: LAYER.lora_A.weight, LAYER.lora_B.weight, and
with DoRA LAYER.lora_magnitude_vector. LAYER of stacked experts is the name of their weight.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


def row_norms(matrix: Tensor) -> Tensor:
    """Return the Euclidean norm [outputs] of each row of a matrix [outputs, inputs]."""
    norms: Tensor = torch.linalg.vector_norm(matrix, dim=1)
    return norms


_DOWN, _UP, _MAGNITUDE = ".lora_A.weight", ".lora_B.weight", ".lora_magnitude_vector"


@dataclass(frozen=True)
class LowRankAdapter:
    """The adapter of one layer, or of the experts that are stacked in one weight.

    Attributes:
        down: A, [rank, inputs], of stacked experts [experts, rank, inputs].
        up: B, [outputs, rank], of stacked experts [experts, outputs, rank].
        magnitude: m, [outputs]; None without DoRA.
    """

    down: Tensor
    up: Tensor
    magnitude: Tensor | None

    def named_tensors(self, layer: str) -> Iterator[tuple[str, Tensor]]:
        """Yield (name, tensor) of each part."""
        yield layer + _DOWN, self.down
        yield layer + _UP, self.up
        if self.magnitude is not None:
            yield layer + _MAGNITUDE, self.magnitude

    def merge_into(
        self,
        weight: Tensor,
        scale: float,
        transposed: bool,
        norms: Callable[[Tensor], Tensor] = row_norms,
    ) -> Tensor:
        """Return W' in at least fp32, of the shape of `weight`, which is not modified.

        Args:
            weight: [outputs, inputs], or [inputs, outputs] when `transposed`, as GPT-2 stores it; of stacked
                experts [experts, outputs, inputs].
            scale: alpha / rank.
            norms: Returns |V| for V, also when V holds only a part of the inputs.
        """
        wide = torch.promote_types(weight.dtype, torch.float32)
        base = weight.to(wide)
        difference = (self.up.to(wide) @ self.down.to(wide)).mul_(scale)
        adapted = (base.T if transposed else base) + difference
        if self.magnitude is not None:
            adapted *= (self.magnitude.to(wide) / norms(adapted))[:, None]
        return adapted.T if transposed else adapted


def group_by_layer(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, LowRankAdapter]:
    """Group named tensors, in any order, into the adapter of each layer.

    Raises ValueError for a name that belongs to no adapter, or for a missing part.
    """
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors:
        suffix = next((suffix for suffix in (_DOWN, _UP, _MAGNITUDE) if name.endswith(suffix)), None)
        if suffix is None:
            raise ValueError(
                f"adapter: {name!r} is not an adapter tensor; names end in {_DOWN}, {_UP}, {_MAGNITUDE}"
            )
        parts.setdefault(name.removesuffix(suffix), {})[suffix] = tensor
    for layer, group in parts.items():
        for suffix in (_DOWN, _UP):
            if suffix not in group:
                raise ValueError(f"adapter: {layer + suffix!r} is missing; the layer has {sorted(group)}")
    return {
        layer: LowRankAdapter(group[_DOWN], group[_UP], group.get(_MAGNITUDE))
        for layer, group in parts.items()
    }
