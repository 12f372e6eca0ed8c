"""Selects the layers that a LoRA specification targets in a model. Pure selection by name and location."""

from collections.abc import Iterator

from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from kubealign.spec.sections.training import LoraLayerKind, LoraTargetLayers, names_experts


def is_linear(module: nn.Module) -> bool:
    """Return True for a layer that can be adapted: torch's linear layer, or GPT-2's transposed one."""
    return isinstance(module, nn.Linear | Conv1D)


def select_target_layers(backbone: PreTrainedModel, targets: LoraTargetLayers) -> list[str]:
    """Return the names of the layers to adapt, in the model's order; never the language-model head.

    Raises ValueError, listing the available suffixes, for a suffix that no linear layer has, or a kind that
    the model does not have.
    """
    layers = list(linear_layers(backbone))
    if targets.names is None:
        kind = targets.kind or LoraLayerKind.ALL_LINEAR
        if kind is LoraLayerKind.EXPERTS:
            return []
        chosen = [name for name, layer_kind in layers if kind in (LoraLayerKind.ALL_LINEAR, layer_kind)]
        if not chosen:
            raise ValueError(f"lora.targets.kind {kind}: {_available_layers(backbone, layers)}")
        return chosen
    suffixes = [name for name in targets.names if not names_experts(name)]
    missing = [suffix for suffix in suffixes if not any(_has_suffix(name, suffix) for name, _ in layers)]
    if missing:
        raise ValueError(
            f"lora.targets.names {', '.join(map(repr, missing))}: no linear layer's name ends so; "
            f"{_available_layers(backbone, layers)}"
        )
    return [name for name, _ in layers if any(_has_suffix(name, suffix) for suffix in suffixes)]


def select_expert_weights(backbone: PreTrainedModel, targets: LoraTargetLayers) -> list[str]:
    """Return the names of the stacked weights of experts to adapt, [experts, outputs, inputs], in the model's
    order.

    Raises ValueError, listing the available ones, for a target that the model does not have.
    """
    suffixes = [name for name in targets.names or () if names_experts(name)]
    if not suffixes and targets.kind is not LoraLayerKind.EXPERTS:
        return []
    weights = [
        name
        for name, weight in backbone.named_parameters()
        if weight.dim() == 3 and names_experts(name) and not _is_transposed(backbone, name)
    ]
    ends = sorted({".".join(name.split(".")[-2:]) for name in weights})
    available = f"{type(backbone).__name__} has stacked experts {', '.join(ends) or 'of no known form'}"
    if not suffixes:
        if not weights:
            raise ValueError(f"lora.targets.kind {targets.kind}: {available}")
        return weights
    missing = [suffix for suffix in suffixes if not any(_has_suffix(name, suffix) for name in weights)]
    if missing:
        raise ValueError(f"lora.targets.names {', '.join(map(repr, missing))}: {available}")
    return [name for name in weights if any(_has_suffix(name, suffix) for suffix in suffixes)]


def _is_transposed(backbone: PreTrainedModel, name: str) -> bool:
    """Return True for experts whose weights are [experts, inputs, outputs]."""
    return bool(getattr(backbone.get_submodule(name.rpartition(".")[0]), "is_transposed", False))


def linear_layers(backbone: PreTrainedModel) -> Iterator[tuple[str, LoraLayerKind | None]]:
    """Yield (name, ATTENTION or MLP, or None for layers outside the blocks) of each linear layer but the
    language-model head.
    """
    head = None
    if backbone.base_model is not backbone:
        head = backbone.get_output_embeddings()
    modules = dict(backbone.named_modules())
    block_types = set(backbone._no_split_modules or [])
    for name, module in modules.items():
        if not is_linear(module) or module is head:
            continue
        parts = name.split(".")
        above = [type(modules[".".join(parts[:end])]).__name__ for end in range(1, len(parts))]
        if any(kind.endswith("Attention") for kind in above):
            yield name, LoraLayerKind.ATTENTION
        else:
            yield name, LoraLayerKind.MLP if block_types & set(above) else None


def _has_suffix(name: str, end: str) -> bool:
    return name == end or name.endswith("." + end)


def _available_layers(backbone: PreTrainedModel, layers: list[tuple[str, LoraLayerKind | None]]) -> str:
    ends = sorted({name.rsplit(".", 1)[-1] for name, _ in layers})
    return f"{type(backbone).__name__} has linear layers that end in {', '.join(ends) or 'nothing'}"
