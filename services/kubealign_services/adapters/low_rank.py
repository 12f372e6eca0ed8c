"""A low-rank adapter as trainer and rollout engine both know it: its tensors' names, and how it is merged.

LoRA (Hu et al. 2021): W' = W + s * B A, with s = alpha / rank. DoRA (Liu et al. 2024): W' = m * V / |V|, with
V = W + s * B A, its norm |V| over each output's inputs, and m trained.

The names are those of a PEFT adapter's file, less its prefix: LAYER.lora_A.weight, LAYER.lora_B.weight, and
with DoRA LAYER.lora_magnitude_vector.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


def row_norms(whole: Tensor) -> Tensor:
    """[outputs, inputs] -> the Euclidean norm [outputs] of each output's inputs."""
    norms: Tensor = torch.linalg.vector_norm(whole, dim=1)
    return norms


_DOWN, _UP, _MAGNITUDE = ".lora_A.weight", ".lora_B.weight", ".lora_magnitude_vector"


@dataclass(frozen=True)
class LowRank:
    """One layer's adapter. down [rank, inputs] (A), up [outputs, rank] (B), magnitude [outputs] (m), which is
    None but for DoRA."""

    down: Tensor
    up: Tensor
    magnitude: Tensor | None

    def named(self, layer: str) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor) of each part."""
        yield layer + _DOWN, self.down
        yield layer + _UP, self.up
        if self.magnitude is not None:
            yield layer + _MAGNITUDE, self.magnitude

    def merged(
        self,
        weight: Tensor,
        scale: float,
        transposed: bool,
        norms: Callable[[Tensor], Tensor] = row_norms,
    ) -> Tensor:
        """W' in at least fp32, of the shape of weight, which stays as it is: [outputs, inputs], or where
        `transposed` [inputs, outputs], as GPT-2 keeps it. norms: |V| of V, also where V has but a part of the
        inputs."""
        wide = torch.promote_types(weight.dtype, torch.float32)
        base = weight.to(wide)
        difference = (self.up.to(wide) @ self.down.to(wide)).mul_(scale)
        whole = (base.T if transposed else base) + difference
        if self.magnitude is not None:
            whole *= (self.magnitude.to(wide) / norms(whole))[:, None]
        return whole.T if transposed else whole


def by_layer(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, LowRank]:
    """Named tensors, in any order -> each layer's adapter. Raises ValueError for a name that is no adapter's,
    or a part that is missing."""
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors:
        end = next((end for end in (_DOWN, _UP, _MAGNITUDE) if name.endswith(end)), None)
        if end is None:
            raise ValueError(f"adapter: {name!r} is no part of one; they end in {_DOWN}, {_UP}, {_MAGNITUDE}")
        parts.setdefault(name.removesuffix(end), {})[end] = tensor
    for layer, found in parts.items():
        for end in (_DOWN, _UP):
            if end not in found:
                raise ValueError(f"adapter: {layer + end!r} did not come, {sorted(found)} of the layer did")
    return {layer: LowRank(found[_DOWN], found[_UP], found.get(_MAGNITUDE)) for layer, found in parts.items()}
