"""A trained adapter as a folder that `PeftModel.from_pretrained` lays over the model it was trained on."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kubealign.spec.training import Lora
from kubealign_services.training.hf_folder_adapter import write_adapter
from kubealign_services.training.torch_backend.lora import adapted_layers, is_transposed, stream_adapter
from kubealign_services.training.torch_backend.packed_model import PackedModel


def whole_adapter(model: PackedModel, rank: int) -> dict[str, Tensor]:
    """The adapter's tensors in fp32 by name, as they are trained; collective, empty tensors but on rank 0."""
    return dict(stream_adapter(model, torch.float32, rank))


def save_adapter(
    folder: Path,
    model: PackedModel,
    tensors: dict[str, Tensor],
    lora: Lora,
    source: Path,
    rename: dict[str, str],
    score: Tensor | None,
) -> None:
    """Write the adapter into a new folder. tensors: as of `whole_adapter`. source: the folder of the model
    under it. rename: layer's name here -> in the model that the adapter is laid over. score: a classifier's
    head, which is trained whole and kept in the adapter."""
    layers: dict[str, Any] = dict(adapted_layers(model.backbone))
    write_adapter(
        folder,
        {_renamed(name, rename): tensor for name, tensor in tensors.items()},
        [rename[name] for name in layers],
        lora,
        source,
        score,
        transposed=any(is_transposed(layer) for layer in layers.values()),
    )


def _renamed(name: str, rename: dict[str, str]) -> str:
    layer, mark, part = name.rpartition(".lora_")
    return rename[layer] + mark + part
