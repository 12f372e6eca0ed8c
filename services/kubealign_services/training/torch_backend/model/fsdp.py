"""FSDP2 sharding of one model over several ranks: each rank holds a slice of every weight, its gradient and
its moments.

Gradients are summed over the ranks, never averaged: the terms of a loss already include their share of the
mean. 16-bit arithmetic over fp32 weights is FSDP2's mixed precision, on one rank as on many, so that both
mean the same.
"""

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor

from kubealign.spec.sections.precision import Precision
from kubealign_services.training.collectives import ensure_process_group
from kubealign_services.training.torch_backend.model.packed_model import PackedModel
from kubealign_services.training.torch_backend.precision import compute_dtype


def shard_model(model: PackedModel, precision: Precision, world_size: int, device: torch.device) -> None:
    """Shard in place over the default process group: one FSDP group for each of the model's blocks and one
    for the rest.

    One rank in fp32 is not sharded. Raises ValueError when the process group has another size, RuntimeError
    when several ranks have none.
    """
    if world_size == 1 and precision is Precision.FLOAT32:
        return
    ensure_process_group(world_size)
    mesh = init_device_mesh(device.type, (world_size,))
    policy = MixedPrecisionPolicy()
    if precision is not Precision.FLOAT32:
        policy = MixedPrecisionPolicy(param_dtype=compute_dtype(precision), reduce_dtype=torch.float32)
    block_names = set(model.backbone._no_split_modules or [])
    blocks = [module for module in model.backbone.modules() if type(module).__name__ in block_names]
    for module in [*blocks, model]:
        fully_shard(module, mesh=mesh, mp_policy=policy)
    # FSDP2 gathers the weights before `forward`, and before this pass too.
    register_fsdp_forward_method(model, PackedModel.topk_logprobs.__name__)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def reshard(model: PackedModel) -> None:
    """Free the gathered root weights that a forward pass without a backward pass leaves behind."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def local_shard(tensor: Tensor) -> Tensor:
    """Return this rank's slice, sharing its memory; the tensor itself when not sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def full_tensor(tensor: Tensor) -> Tensor:
    """Return the full tensor. Collective when sharded."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
