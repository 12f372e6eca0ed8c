"""Weights in Hugging Face form: as a stream of named tensors, and as a folder that `from_pretrained`
loads."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from kubealign.spec.training import Lora
from kubealign_services.training.hf_folder import exported_config, new_folder
from kubealign_services.training.hf_folder_adapter import FOLDER
from kubealign_services.training.torch_backend.adapter_export import save_adapter, whole_adapter
from kubealign_services.training.torch_backend.lora import adapted_layers, plain_name, whole_weight
from kubealign_services.training.torch_backend.packed_model import PackedModel
from kubealign_services.training.torch_backend.sharding import gathered


def stream_weights(model: PackedModel, dtype: torch.dtype, rank: int) -> Iterator[tuple[str, Tensor]]:
    """(Hugging Face name, CPU tensor of dtype) of every weight of the backbone, an adapter merged into it,
    tied ones once; collective.
    On ranks other than 0 the tensors are empty. A tensor may share the model's memory: it holds until the
    next update."""
    weights = _weights(model.backbone, dtype, rank)
    if is_converted(model.backbone):
        # Such models keep weights in another layout than their checkpoints (experts stacked): all are needed
        # to convert back.
        names = dict(weights)
        yield from revert_weight_conversion(model.backbone, names).items() if rank == 0 else _emptied(names)
    else:
        yield from weights


def named_weights(backbone: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """(name, parameter or kept buffer) as the model has them, sharded where they are; tied ones once."""
    tied = set(getattr(backbone, "all_tied_weights_keys", None) or {})
    named = [*backbone.named_parameters(remove_duplicate=False), *_persistent_buffers(backbone)]
    originals = {id(tensor) for name, tensor in named if name not in tied}
    return ((name, tensor) for name, tensor in named if not (name in tied and id(tensor) in originals))


def _weights(backbone: PreTrainedModel, dtype: torch.dtype, rank: int) -> Iterator[tuple[str, Tensor]]:
    layers = dict(adapted_layers(backbone))
    for name, tensor in named_weights(backbone):
        plain = plain_name(name)
        if plain is None:
            continue
        whole = whole_weight(name, tensor, layers)
        kind = dtype if whole.is_floating_point() else whole.dtype
        yield plain, whole.to("cpu", kind) if rank == 0 else torch.empty(0, dtype=kind)


def _persistent_buffers(backbone: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    kept = backbone.state_dict().keys()
    return ((name, buffer) for name, buffer in backbone.named_buffers() if name in kept)


def is_converted(backbone: PreTrainedModel) -> bool:
    """Whether the checkpoint keeps the weights in another layout than the model."""
    return bool(getattr(backbone, "_weight_conversions", None))


def _emptied(names: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    return iter(names.items())


def export_folder(
    model: PackedModel,
    directory: Path,
    source: Path,
    dtype: torch.dtype,
    pooling: str | None,
    rank: int,
    scores: Sequence[str] = (),
    lora: Lora | None = None,
) -> None:
    """Fill `directory` (new, or replaced whole) with a Hugging Face checkpoint; collective, rank 0 writes.

    A language model becomes a causal language model, a model with another head a sequence classifier with
    one label for each of its outputs and, in its config, `kubealign_pooling` where pooling is given. scores:
    the labels' names; empty: as transformers calls them. Tokenizer files are the source folder's. lora: what
    an adapter was made by, which is merged and also kept for itself, as a PEFT folder `adapter`.
    """
    weights = dict(_weights(model.backbone, dtype, rank))
    score = None if model.score is None else gathered(model.score.weight.detach()).to("cpu", dtype)
    adapter = whole_adapter(model, rank)
    if rank != 0:
        return
    config = exported_config(model.backbone.config, None if score is None else len(score), scores, pooling)
    auto: Any = AutoModelForCausalLM if score is None else AutoModelForSequenceClassification
    with torch.device("meta"):
        skeleton: PreTrainedModel = auto.from_config(config, dtype=dtype)
    if score is not None:
        weights = _classifier_weights(model, skeleton, weights, score)
    with new_folder(directory, source) as folder:
        skeleton.save_pretrained(folder, state_dict=weights)
        if lora is not None:
            names = {name: _name_in(model, skeleton, name) for name, _ in adapted_layers(model.backbone)}
            save_adapter(folder / FOLDER, model, adapter, lora, source, names, score)


def _classifier_weights(
    model: PackedModel, skeleton: PreTrainedModel, weights: dict[str, Tensor], score: Tensor
) -> dict[str, Tensor]:
    """The trunk's weights under the classifier's prefix, and the scalar head; a vocabulary's head stays
    behind."""
    old = _trunk_prefix(model.backbone)
    trunk = {
        _name_in(model, skeleton, name): tensor for name, tensor in weights.items() if name.startswith(old)
    }
    return trunk | {"score.weight": score}


def _name_in(model: PackedModel, skeleton: PreTrainedModel, name: str) -> str:
    """The name of something of the trunk in the exported model."""
    return _trunk_prefix(skeleton) + name.removeprefix(_trunk_prefix(model.backbone))


def _trunk_prefix(model: PreTrainedModel) -> str:
    return "" if model.base_model is model else f"{model.base_model_prefix}."
