"""A rank's own pieces of the weights, as FSDP2 has cut them: nothing is gathered."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from transformers import PreTrainedModel

from kubealign_services.training.slices import WeightSlice
from kubealign_services.training.torch_backend.export import is_converted, named_weights
from kubealign_services.training.torch_backend.packed_model import PackedModel
from kubealign_services.training.torch_backend.sharding import reshard


def has_own_layout(backbone: PreTrainedModel) -> bool:
    """Whether the checkpoint's tensors are the model's parameters, so that a piece of one is a piece of the
    other."""
    return not is_converted(backbone)


@torch.no_grad()
def own_slices(model: PackedModel, dtype: torch.dtype, rank: int) -> Iterator[WeightSlice]:
    """This rank's pieces of the backbone's weights, meant in the precision `dtype`, tied ones once; what is
    not sharded is rank 0's. Not collective. They are views of the model's memory and hold until the next
    update."""
    reshard(model)
    for name, tensor in named_weights(model.backbone):
        piece = _own(name, tensor.detach())
        if piece is None:
            continue
        if not isinstance(tensor, DTensor) and rank != 0:
            continue
        kind = dtype if piece.tensor.is_floating_point() else piece.tensor.dtype
        yield replace(piece, dtype=kind)


def _own(name: str, tensor: Tensor) -> WeightSlice | None:
    """None: this rank has nothing of it."""
    if not isinstance(tensor, DTensor):
        return WeightSlice.whole(name, tensor)
    shape, start = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    local = tensor.to_local()
    if not local.numel() and tensor.numel():
        return None
    return WeightSlice(name, tuple(tensor.shape), tuple(start), local.reshape(shape))
