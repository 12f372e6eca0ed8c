"""Selects the layers that a LoRA specification targets in a model. Pure selection by name and location."""

from collections.abc import Iterator

from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from kubealign.spec.training import LoraTargets, TargetKind


def is_linear(module: nn.Module) -> bool:
    """Return True for a layer that can be adapted: torch's linear layer, or GPT-2's transposed one."""
    return isinstance(module, nn.Linear | Conv1D)


def target_layers(backbone: PreTrainedModel, targets: LoraTargets) -> list[str]:
    """Return the names of the layers to adapt, in the model's order; never the language-model head.

    Raises ValueError, listing the available suffixes, for a suffix that no linear layer has, or a kind
    that the model does
    not have.
    """
    layers = list(_linear_layers(backbone))
    if targets.names is None:
        kind = targets.kind or TargetKind.ALL_LINEAR
        chosen = [name for name, layer_kind in layers if kind in (TargetKind.ALL_LINEAR, layer_kind)]
        if not chosen:
            raise ValueError(f"lora.targets.kind {kind}: {_there_is(backbone, layers)}")
        return chosen
    missing = [suffix for suffix in targets.names if not any(_ends(name, suffix) for name, _ in layers)]
    if missing:
        raise ValueError(
            f"lora.targets.names {', '.join(map(repr, missing))}: no linear layer's name ends so; "
            f"{_there_is(backbone, layers)}"
        )
    return [name for name, _ in layers if any(_ends(name, suffix) for suffix in targets.names)]


def _linear_layers(backbone: PreTrainedModel) -> Iterator[tuple[str, TargetKind | None]]:
    """Yield (name, ATTENTION or MLP, or None for layers outside the blocks)."""
    head = None
    if backbone.base_model is not backbone:
        head = backbone.get_output_embeddings()  # type: ignore[no-untyped-call]
    modules = dict(backbone.named_modules())
    block_types = set(backbone._no_split_modules or [])
    for name, module in modules.items():
        if not is_linear(module) or module is head:
            continue
        parts = name.split(".")
        above = [type(modules[".".join(parts[:end])]).__name__ for end in range(1, len(parts))]
        if any(kind.endswith("Attention") for kind in above):
            yield name, TargetKind.ATTENTION
        else:
            yield name, TargetKind.MLP if block_types & set(above) else None


def _ends(name: str, end: str) -> bool:
    return name == end or name.endswith("." + end)


def _there_is(backbone: PreTrainedModel, layers: list[tuple[str, TargetKind | None]]) -> str:
    ends = sorted({name.rsplit(".", 1)[-1] for name, _ in layers})
    return f"{type(backbone).__name__} has linear layers that end in {', '.join(ends) or 'nothing'}"
