"""Weights in Hugging Face form: as a stream of named tensors, and as a folder that `from_pretrained`
loads."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from kubealign.spec.training import Lora
from kubealign_services.training.torch_backend.adapter_export import FOLDER, save_adapter, whole_adapter
from kubealign_services.training.torch_backend.durable import to_disk
from kubealign_services.training.torch_backend.lora import adapted_layers, plain_name, whole_weight
from kubealign_services.training.torch_backend.models import POOLING
from kubealign_services.training.torch_backend.packed_model import PackedModel
from kubealign_services.training.torch_backend.sharding import gathered

# What travels from the source folder to the exported one beside weights and config.
_COMPANIONS = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "vocab.txt", "merges.txt", "tokenizer.model", "spiece.model"),
    *("chat_template.jinja", "chat_template.json", "generation_config.json"),
)


def stream_weights(model: PackedModel, dtype: torch.dtype, rank: int) -> Iterator[tuple[str, Tensor]]:
    """(Hugging Face name, CPU tensor of dtype) of every weight of the backbone, an adapter merged into it,
    tied ones once; collective.
    On ranks other than 0 the tensors are empty. A tensor may share the model's memory: it holds until the
    next update."""
    weights = _weights(model.backbone, dtype, rank)
    if _is_converted(model.backbone):
        # Such models keep weights in another layout than their checkpoints (experts stacked): all are needed
        # to convert back.
        names = dict(weights)
        yield from revert_weight_conversion(model.backbone, names).items() if rank == 0 else _emptied(names)
    else:
        yield from weights


def _weights(backbone: PreTrainedModel, dtype: torch.dtype, rank: int) -> Iterator[tuple[str, Tensor]]:
    tied = set(getattr(backbone, "all_tied_weights_keys", None) or {})
    named = [*backbone.named_parameters(remove_duplicate=False), *_persistent_buffers(backbone)]
    originals = {id(tensor) for name, tensor in named if name not in tied}
    layers = dict(adapted_layers(backbone))
    for name, tensor in named:
        plain = plain_name(name)
        if plain is None or (name in tied and id(tensor) in originals):
            continue
        whole = whole_weight(name, tensor, layers)
        kind = dtype if whole.is_floating_point() else whole.dtype
        yield plain, whole.to("cpu", kind) if rank == 0 else torch.empty(0, dtype=kind)


def _persistent_buffers(backbone: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    kept = backbone.state_dict().keys()
    return ((name, buffer) for name, buffer in backbone.named_buffers() if name in kept)


def _is_converted(backbone: PreTrainedModel) -> bool:
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
    config = type(model.backbone.config).from_dict(model.backbone.config.to_dict())
    if score is not None:
        config.num_labels = len(score)
        if scores:
            config.id2label = dict(enumerate(scores))
            config.label2id = {name: index for index, name in enumerate(scores)}
        config.pad_token_id = _padding(config)
        if pooling is not None:
            setattr(config, POOLING, pooling)
    auto: Any = AutoModelForCausalLM if score is None else AutoModelForSequenceClassification
    with torch.device("meta"):
        skeleton: PreTrainedModel = auto.from_config(config, dtype=dtype)
    if score is not None:
        weights = _classifier_weights(model, skeleton, weights, score)
    directory.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        skeleton.save_pretrained(partial, state_dict=weights)
        for name in _COMPANIONS:
            if (source / name).is_file():
                shutil.copyfile(source / name, partial / name)
        if lora is not None:
            names = {name: _name_in(model, skeleton, name) for name, _ in adapted_layers(model.backbone)}
            save_adapter(partial / FOLDER, model, adapter, lora, source, names, score)
        for path in [*partial.rglob("*"), partial]:
            to_disk(path)
        partial.chmod(0o755)
        _replace(partial, directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


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


def _padding(config: Any) -> int:
    """The token that a classifier takes for padding: the config's, else its end of sequence, else 0."""
    for token in (config.pad_token_id, config.eos_token_id):
        if isinstance(token, list) and token:
            return int(token[0])
        if isinstance(token, int):
            return token
    return 0


def _replace(partial: Path, directory: Path) -> None:
    """Rename into place; what stood there is moved aside first and removed last."""
    old = partial.with_name(f"{partial.name}.old")
    if directory.exists():
        directory.rename(old)
    partial.rename(directory)
    to_disk(directory.parent)
    shutil.rmtree(old, ignore_errors=True)
