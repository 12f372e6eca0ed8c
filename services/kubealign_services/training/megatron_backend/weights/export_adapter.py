"""Writes the adapter of a trained model as a separate folder within the exported one."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from kubealign.spec.sections.training import Lora
from kubealign_services.training.adapters.peft_folder import ADAPTER_FOLDER, write_peft_adapter
from kubealign_services.training.megatron_backend.weights.conversion import WeightConversion
from kubealign_services.training.megatron_backend.weights.rank_slices import gather_tensors, is_adapter

_SCORE = "score.weight"


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
