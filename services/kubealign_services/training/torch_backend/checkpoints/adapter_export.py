"""Exports a trained adapter as a folder for `PeftModel.from_pretrained`."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kubealign.spec.sections.training import Lora
from kubealign_services.training.adapters.peft_folder import write_peft_adapter
from kubealign_services.training.torch_backend.model.lora import adapted_layers, is_transposed, stream_adapter
from kubealign_services.training.torch_backend.model.packed_model import PackedModel


def gather_adapter(model: PackedModel, rank: int) -> dict[str, Tensor]:
    """Gather the adapter's tensors by name, in fp32, as they are trained; collective, empty tensors on ranks
    other than 0.
    """
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


def _rename_layer(name: str, rename: dict[str, str]) -> str:
    layer, mark, part = name.rpartition(".lora_")
    return rename[layer] + mark + part
