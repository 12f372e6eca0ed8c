"""A rank's own slices of the weights, as FSDP2 shards them: nothing is gathered."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from transformers import PreTrainedModel

from kubealign_services.data.models.checkpoint_layout import has_converted_layout
from kubealign_services.training.torch_backend.checkpoints.export import named_weights
from kubealign_services.training.torch_backend.model.fsdp import reshard
from kubealign_services.training.torch_backend.model.packed_model import PackedModel
from kubealign_services.training.weight_slices import WeightSlice


def matches_checkpoint_layout(backbone: PreTrainedModel) -> bool:
    """Return True when the checkpoint's tensors are the model's parameters, so that a slice of one is a slice
    of the other.
    """
    return not has_converted_layout(backbone)


@torch.no_grad()
def local_weight_slices(model: PackedModel, dtype: torch.dtype, rank: int) -> Iterator[WeightSlice]:
    """Yield this rank's slices of the backbone's weights, to be converted to `dtype`, tied weights once.

    Not collective.

    Unsharded weights are yielded by rank 0. The slices are views of the model's memory, valid until the
    next
    update.
    """
    reshard(model)
    for name, tensor in named_weights(model.backbone):
        piece = _local_slice(name, tensor.detach())
        if piece is None:
            continue
        if not isinstance(tensor, DTensor) and rank != 0:
            continue
        target_dtype = dtype if piece.tensor.is_floating_point() else piece.tensor.dtype
        yield replace(piece, dtype=target_dtype)


def _local_slice(name: str, tensor: Tensor) -> WeightSlice | None:
    """Return this rank's slice of a tensor; None when it has none."""
    if not isinstance(tensor, DTensor):
        return WeightSlice.from_full_tensor(name, tensor)
    shape, start = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    local = tensor.to_local()
    if not local.numel() and tensor.numel():
        return None
    return WeightSlice(name, tuple(tensor.shape), tuple(start), local.reshape(shape))
