"""Writes a Hugging Face folder from the ranks' slices: rank 0 writes, one file's tensors at a time."""

import json
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, PreTrainedModel

from kubealign.spec.sections.training import Lora
from kubealign_services.training.adapters.peft_folder import ADAPTER_FOLDER, write_peft_adapter
from kubealign_services.training.files.hf_folder import atomic_folder, export_config
from kubealign_services.training.files.hf_heads import HeadPooling
from kubealign_services.training.megatron_backend.weights.conversion import WeightConversion
from kubealign_services.training.megatron_backend.weights.rank_slices import (
    ParameterFilter,
    full_shapes,
    gather_tensors,
    is_adapter,
    is_weight,
)

_SCORE = "score.weight"

#: Maximum bytes of one weight file; a single larger tensor gets a file of its own.
FILE_BYTES = 2 << 30


def export_filter(with_score: bool) -> ParameterFilter:
    """Return the filter of an exported folder's weights: a classifier has no language-model head."""

    def wanted(parameter: str) -> bool:
        return is_weight(parameter) and not (with_score and parameter == "output_layer.weight")

    return wanted


def send_slices(weights: Iterator[tuple[str, Tensor]]) -> None:
    """Send this rank's slices. For ranks other than 0."""
    for _ in weights:
        pass


def write_hf_folder(
    directory: Path,
    source: Path,
    config: Any,
    conversions: Sequence[WeightConversion],
    weights: Iterator[tuple[str, Tensor]],
    dtype: torch.dtype,
    pooling: HeadPooling | None = None,
    scores: Sequence[str] = (),
    file_bytes: int = FILE_BYTES,
) -> None:
    """Fill `directory` (new, or replaced atomically). For rank 0.

    A language model becomes a causal language model, a model with another head a sequence classifier, as in
    `torch_backend.checkpoints.export.export_folder`; so pooling and scores.

    Args:
        config: Config of the source folder.
        weights: Result of `gather_tensors` with `export_filter`, while the other ranks run `send_slices` on
            theirs.
    """
    count = conversions[0].heads.scores or None
    copy = export_config(config, count, scores, pooling)
    auto: Any = AutoModelForCausalLM if count is None else AutoModelForSequenceClassification
    with torch.device("meta"):
        skeleton: PreTrainedModel = auto.from_config(copy, dtype=dtype)
    skeleton.config.architectures = [type(skeleton).__name__]
    skeleton.config.dtype = dtype
    shapes = full_shapes(conversions[0], export_filter(count is not None))
    with atomic_folder(directory, source) as folder:
        skeleton.config.save_pretrained(folder)
        if skeleton.can_generate() and skeleton.generation_config is not None:
            skeleton.generation_config.save_pretrained(folder)
        _write_weights(folder, _plan_files(shapes, dtype, file_bytes), weights)


def export_adapter(
    directory: Path,
    source: Path,
    conversions: Sequence[WeightConversion],
    rank: int,
    parameters: Mapping[str, Tensor],
    lora: Lora,
) -> None:
    """Write `adapter/` into an exported folder, in fp32; collective, rank 0 writes.

    A classifier's head, which is trained in full, is stored with the adapter.

    Args:
        source: Folder of the base model.
    """
    tensors = dict(gather_tensors(conversions, rank, parameters, torch.float32, is_adapter))
    heads = dict(gather_tensors(conversions, rank, parameters, torch.float32, lambda name: name == _SCORE))
    if rank == 0:
        layers = sorted({name.rpartition(".lora_")[0] for name in tensors})
        write_peft_adapter(directory / ADAPTER_FOLDER, tensors, layers, lora, source, heads.get(_SCORE))


def _plan_files(shapes: dict[str, tuple[int, ...]], dtype: torch.dtype, most: int) -> list[dict[str, int]]:
    """Plan the files: the tensors of each file with their bytes, in the order of the names."""
    files: list[dict[str, int]] = [{}]
    for name, shape in shapes.items():
        size = prod(shape) * dtype.itemsize
        if files[-1] and sum(files[-1].values()) + size > most:
            files.append({})
        files[-1][name] = size
    return files


def _write_weights(folder: Path, files: list[dict[str, int]], weights: Iterator[tuple[str, Tensor]]) -> None:
    """Write one file, or several with an index, named as transformers names them."""
    file_of: dict[str, str] = {}
    for index, sizes in enumerate(files, start=1):
        file = f"model-{index:05d}-of-{len(files):05d}.safetensors" if len(files) > 1 else "model.safetensors"
        # Cloned: a tensor may be a view of the model's memory, which safetensors refuses to share.
        tensors = {name: tensor.clone() for name, tensor in (next(weights) for _ in sizes)}
        save_file(tensors, folder / file, metadata={"format": "pt"})
        file_of.update(dict.fromkeys(tensors, file))
    if len(files) > 1:
        total = sum(sum(sizes.values()) for sizes in files)
        index_file = folder / "model.safetensors.index.json"
        contents = {"metadata": {"total_size": total}, "weight_map": file_of}
        index_file.write_text(json.dumps(contents, indent=2))
