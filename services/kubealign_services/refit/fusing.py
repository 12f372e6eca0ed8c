"""Tensors as engines that fuse projections have them, of those that a Hugging Face checkpoint names. Pure.

vLLM's and TensorRT-LLM's layers hold queries, keys and values in one matrix, gate and up in another: the rows
of the first, then those of the second, and so on. A bias is fused like the matrix.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

#: Fused projection -> what it is made of, in the order of its rows.
Fusions = Mapping[str, tuple[str, ...]]

_QKV: Fusions = {"qkv_proj": ("q_proj", "k_proj", "v_proj")}
_GATE_UP: Fusions = {"gate_up_proj": ("gate_proj", "up_proj")}

#: `model_type` of the checkpoint's config -> what engines fuse of it.
FUSIONS: Mapping[str, Fusions] = {
    "llama": {**_QKV, **_GATE_UP},
    "mistral": {**_QKV, **_GATE_UP},
    "qwen2": {**_QKV, **_GATE_UP},
    "qwen3": {**_QKV, **_GATE_UP},
    # Gate and up of the experts are the engine's own matter: each expert keeps its name.
    "qwen3_moe": _QKV,
    "mixtral": _QKV,
}


class CannotFuse(ValueError):
    """A part of a fused tensor did not come, or parts do not fit one another. Names them."""


@dataclass
class _Half:
    """A fused tensor of which some parts have come."""

    parts: tuple[str, ...]
    came: dict[str, Tensor] = field(default_factory=dict)


def fused(tensors: Iterable[tuple[str, Tensor]], model_type: str) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) as an engine that fuses has them: what is fused comes once its last part has, the rest
    as it is. Raises CannotFuse, also for a model type that no table is known for."""
    if model_type not in FUSIONS:
        raise CannotFuse(f"model_type is {model_type!r}; fused are {', '.join(FUSIONS)}")
    whole_of = {part: (name, parts) for name, parts in FUSIONS[model_type].items() for part in parts}
    halves: dict[str, _Half] = {}
    for name, tensor in tensors:
        module, _, kind = name.rpartition(".")
        above, _, projection = module.rpartition(".")
        if projection not in whole_of or ".experts." in name:
            yield name, tensor
            continue
        fused_name, parts = whole_of[projection]
        target = f"{above}.{fused_name}.{kind}"
        half = halves.setdefault(target, _Half(parts))
        half.came[projection] = tensor
        if len(half.came) == len(parts):
            yield target, _joined(target, halves.pop(target))
    if halves:
        target, half = next(iter(halves.items()))
        missing = [part for part in half.parts if part not in half.came]
        raise CannotFuse(f"{target}: {', '.join(missing)} did not come")


def _joined(target: str, half: _Half) -> Tensor:
    tensors = [half.came[part] for part in half.parts]
    if len({(tensor.dtype, tensor.shape[1:]) for tensor in tensors}) > 1:
        shapes = ", ".join(f"{part} {list(half.came[part].shape)}" for part in half.parts)
        raise CannotFuse(f"{target}: the parts do not fit one another: {shapes}")
    return torch.cat(tensors)
