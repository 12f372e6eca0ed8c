"""Which layers a LoRA specification means in a model. Pure selection by name and place."""

from collections.abc import Iterator

from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from kubealign.spec.training import LoraTargets, TargetKind


def is_linear(module: nn.Module) -> bool:
    """A matrix that can be adapted: torch's linear layer, or GPT-2's transposed one."""
    return isinstance(module, nn.Linear | Conv1D)


def target_layers(backbone: PreTrainedModel, targets: LoraTargets) -> list[str]:
    """Names of the layers to be adapted, in the model's order; the vocabulary's head is never among them.

    Raises ValueError for an end of a name that no linear layer has, or a kind that the model does not have,
    with the ends there are.
    """
    layers = list(_linear_layers(backbone))
    if targets.names is None:
        kind = targets.kind or TargetKind.ALL_LINEAR
        chosen = [name for name, place in layers if kind in (TargetKind.ALL_LINEAR, place)]
        if not chosen:
            raise ValueError(f"lora.targets.kind {kind}: {_there_is(backbone, layers)}")
        return chosen
    lost = [end for end in targets.names if not any(_ends(name, end) for name, _ in layers)]
    if lost:
        raise ValueError(
            f"lora.targets.names {', '.join(map(repr, lost))}: no linear layer's name ends so; "
            f"{_there_is(backbone, layers)}"
        )
    return [name for name, _ in layers if any(_ends(name, end) for end in targets.names)]


def _linear_layers(backbone: PreTrainedModel) -> Iterator[tuple[str, TargetKind | None]]:
    """(name, ATTENTION or MLP, or None for those outside the blocks)."""
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
