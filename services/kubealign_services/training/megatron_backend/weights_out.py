"""A Hugging Face folder from the ranks' pieces: rank 0 writes it, a file's worth of tensors at a time."""

import json
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, PreTrainedModel

from kubealign_services.training.hf_folder import exported_config, new_folder
from kubealign_services.training.megatron_backend.conversion import Conversion
from kubealign_services.training.megatron_backend.slices import Wanted, is_weight, whole_shapes

#: Bytes of one file of weights, at most but for a single tensor.
FILE_BYTES = 2 << 30


def is_exported(with_score: bool) -> Wanted:
    """Which weights an exported folder holds: a classifier has no head for the vocabulary."""

    def wanted(parameter: str) -> bool:
        return is_weight(parameter) and not (with_score and parameter == "output_layer.weight")

    return wanted


def drained(weights: Iterator[tuple[str, Tensor]]) -> None:
    """On ranks other than 0: send this rank's pieces."""
    for _ in weights:
        pass


def write_folder(
    directory: Path,
    source: Path,
    config: Any,
    conversions: Sequence[Conversion],
    weights: Iterator[tuple[str, Tensor]],
    dtype: torch.dtype,
    pooling: str | None = None,
    scores: Sequence[str] = (),
    file_bytes: int = FILE_BYTES,
) -> None:
    """On rank 0: fill `directory` (new, or replaced whole). weights: of `slices.gathered` with
    `is_exported`, while the other ranks run `drained` on theirs.

    config: the source folder's. A language model becomes a causal language model, a model with another head
    a sequence classifier, as of `torch_backend.export.export_folder`; so pooling and scores.
    """
    count = conversions[0].heads.scores or None
    copy = exported_config(config, count, scores, pooling)
    auto: Any = AutoModelForCausalLM if count is None else AutoModelForSequenceClassification
    with torch.device("meta"):
        skeleton: PreTrainedModel = auto.from_config(copy, dtype=dtype)
    skeleton.config.architectures = [type(skeleton).__name__]
    skeleton.config.dtype = dtype
    shapes = whole_shapes(conversions[0], is_exported(count is not None))
    with new_folder(directory, source) as folder:
        skeleton.config.save_pretrained(folder)
        if skeleton.can_generate() and skeleton.generation_config is not None:
            skeleton.generation_config.save_pretrained(folder)
        _write_weights(folder, _files(shapes, dtype, file_bytes), weights)


def _files(shapes: dict[str, tuple[int, ...]], dtype: torch.dtype, most: int) -> list[dict[str, int]]:
    """Each file's tensors with their bytes, in the order of the names."""
    files: list[dict[str, int]] = [{}]
    for name, shape in shapes.items():
        size = prod(shape) * dtype.itemsize
        if files[-1] and sum(files[-1].values()) + size > most:
            files.append({})
        files[-1][name] = size
    return files


def _write_weights(folder: Path, files: list[dict[str, int]], weights: Iterator[tuple[str, Tensor]]) -> None:
    """One file, or several with an index, as transformers names them."""
    places: dict[str, str] = {}
    for index, sizes in enumerate(files, start=1):
        file = f"model-{index:05d}-of-{len(files):05d}.safetensors" if len(files) > 1 else "model.safetensors"
        # Copied: a tensor may be a view of the model's memory, which safetensors refuses to share.
        tensors = {name: tensor.clone() for name, tensor in (next(weights) for _ in sizes)}
        save_file(tensors, folder / file, metadata={"format": "pt"})
        places.update(dict.fromkeys(tensors, file))
    if len(files) > 1:
        total = sum(sum(sizes.values()) for sizes in files)
        index_file = folder / "model.safetensors.index.json"
        index_file.write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": places}, indent=2))
