"""Exports weights in Hugging Face form: as a stream of named tensors, and as a folder for
`from_pretrained`.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from kubealign.spec.sections.training import Lora
from kubealign_services.data.models.checkpoint_layout import has_converted_layout
from kubealign_services.training.adapters.peft_folder import ADAPTER_FOLDER, write_peft_adapter
from kubealign_services.training.files.hf_folder import atomic_folder, export_config
from kubealign_services.training.files.hf_heads import HeadPooling
from kubealign_services.training.torch_backend.model.fsdp import full_tensor
from kubealign_services.training.torch_backend.model.lora import (
    adapted_layers,
    base_name,
    gather_merged_weight,
    is_transposed,
    stream_adapter,
)
from kubealign_services.training.torch_backend.model.nf4_linear import dequantized
from kubealign_services.training.torch_backend.model.packed_model import PackedModel


def stream_weights(model: PackedModel, dtype: torch.dtype, rank: int) -> Iterator[tuple[str, Tensor]]:
    """Yield (Hugging Face name, CPU tensor of dtype) of every weight of the backbone, with an adapter merged
    in, tied weights once; collective.

    On ranks other than 0 the tensors are empty. A tensor may share the model's memory and is then valid until
    the next update.
    """
    weights = _gather_weights(model.backbone, dtype, rank)
    if has_converted_layout(model.backbone):
        # Such models store weights in another layout than their checkpoints (experts stacked): converting
        # back needs all of them.
        names = dict(weights)
        yield from (
            revert_weight_conversion(model.backbone, names).items() if rank == 0 else _iter_empty(names)
        )
    else:
        yield from weights


def named_weights(backbone: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, parameter or persistent buffer) of the model, sharded as stored, tied weights once;
    collective where weights are quantised, which are dequantised one by one.
    """
    tied = set(getattr(backbone, "all_tied_weights_keys", None) or {})
    named = [*backbone.named_parameters(remove_duplicate=False), *_persistent_buffers(backbone)]
    originals = {id(tensor) for name, tensor in named if name not in tied}
    once = ((name, tensor) for name, tensor in named if not (name in tied and id(tensor) in originals))
    return dequantized(backbone, once)


def export_folder(
    model: PackedModel,
    directory: Path,
    source: Path,
    dtype: torch.dtype,
    pooling: HeadPooling | None,
    rank: int,
    scores: Sequence[str] = (),
    lora: Lora | None = None,
) -> None:
    """Fill `directory` (new, or replaced atomically) with a Hugging Face checkpoint; collective, rank 0
    writes.

    A language model becomes a causal language model, a model with another head a sequence classifier with one
    label for each of its outputs. Tokenizer files are copied from the source folder.

    Args:
        pooling: Stored as `kubealign_pooling` in the config, unless None.
        scores: Names of the labels; empty for the default names of transformers.
        lora: Settings of an adapter, which is merged and also written as a PEFT folder `adapter`.
    """
    weights = dict(_gather_weights(model.backbone, dtype, rank))
    score = None if model.score is None else full_tensor(model.score.weight.detach()).to("cpu", dtype)
    adapter = gather_adapter(model, rank)
    if rank != 0:
        return
    config = export_config(model.backbone.config, None if score is None else len(score), scores, pooling)
    auto: Any = AutoModelForCausalLM if score is None else AutoModelForSequenceClassification
    with torch.device("meta"):
        skeleton: PreTrainedModel = auto.from_config(config, dtype=dtype)
    if score is not None:
        weights = _classifier_weights(model, skeleton, weights, score)
    with atomic_folder(directory, source) as folder:
        skeleton.save_pretrained(folder, state_dict=weights)
        if lora is not None:
            names = {
                name: _exported_name(model, skeleton, name) for name, _ in adapted_layers(model.backbone)
            }
            save_adapter(folder / ADAPTER_FOLDER, model, adapter, lora, source, names, score)


def save_adapter(
    folder: Path,
    model: PackedModel,
    tensors: dict[str, Tensor],
    lora: Lora,
    source: Path,
    rename: dict[str, str],
    score: Tensor | None,
) -> None:
    """Write the adapter into a new folder.

    Args:
        tensors: Result of `gather_adapter`.
        source: Folder of the base model.
        rename: Layer name in this model -> layer name in the base model.
        score: A classifier's head, which is trained in full and stored with the adapter.
    """
    layers: dict[str, Any] = dict(adapted_layers(model.backbone))
    write_peft_adapter(
        folder,
        {_rename_layer(name, rename): tensor for name, tensor in tensors.items()},
        [rename[name] for name in layers],
        lora,
        source,
        score,
        transposed=any(is_transposed(layer) for layer in layers.values()),
    )


def gather_adapter(model: PackedModel, rank: int) -> dict[str, Tensor]:
    """Gather the adapter's tensors by name, in fp32, as they are trained; collective, empty tensors on ranks
    other than 0.
    """
    return dict(stream_adapter(model, torch.float32, rank))


def _rename_layer(name: str, rename: dict[str, str]) -> str:
    layer, mark, part = name.rpartition(".lora_")
    return rename[layer] + mark + part


def _gather_weights(backbone: PreTrainedModel, dtype: torch.dtype, rank: int) -> Iterator[tuple[str, Tensor]]:
    layers = dict(adapted_layers(backbone))
    for name, tensor in named_weights(backbone):
        plain = base_name(name)
        if plain is None:
            continue
        merged = gather_merged_weight(name, tensor, layers)
        target_dtype = dtype if merged.is_floating_point() else merged.dtype
        yield plain, merged.to("cpu", target_dtype) if rank == 0 else torch.empty(0, dtype=target_dtype)


def _persistent_buffers(backbone: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    persistent = backbone.state_dict().keys()
    return ((name, buffer) for name, buffer in backbone.named_buffers() if name in persistent)


def _iter_empty(names: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    return iter(names.items())


def _classifier_weights(
    model: PackedModel, skeleton: PreTrainedModel, weights: dict[str, Tensor], score: Tensor
) -> dict[str, Tensor]:
    """Return the trunk's weights under the classifier's prefix, and the score head; drops a language-model
    head.
    """
    old = _trunk_prefix(model.backbone)
    trunk = {
        _exported_name(model, skeleton, name): tensor
        for name, tensor in weights.items()
        if name.startswith(old)
    }
    return trunk | {"score.weight": score}


def _exported_name(model: PackedModel, skeleton: PreTrainedModel, name: str) -> str:
    """Return the exported model's name for a trunk layer or weight."""
    return _trunk_prefix(skeleton) + name.removeprefix(_trunk_prefix(model.backbone))


def _trunk_prefix(model: PreTrainedModel) -> str:
    return "" if model.base_model is model else f"{model.base_model_prefix}."
