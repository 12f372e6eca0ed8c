"""Gradient reduction across ranks: replication of each parameter, and the ranks over which its gradient is
summed.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from kubealign_services.training.megatron_backend.model.stage import PipelineStage
from kubealign_services.training.megatron_backend.parallel.process_groups import ParallelGroups
from kubealign_services.training.megatron_backend.weights.conversion import WeightConversion

_EMBEDDING = "embedding.word_embeddings.weight"
_OUTPUT = "output_layer.weight"


def is_expert(name: str) -> bool:
    """Return True when a parameter is replicated over the experts' ranks only."""
    return ".mlp.experts." in name


def sums_over_tensor_ranks(name: str, parameter: nn.Parameter) -> bool:
    """Return True when the tensor ranks hold the same parameter and parts of its gradient: each sees some of
    the tokens (megatron-core marks these `sequence_parallel`), or some of the heads.
    """
    return bool(getattr(parameter, "sequence_parallel", False)) or (
        name.endswith((".q_layernorm.weight", ".k_layernorm.weight"))
    )


def tied_weight_name(stage: PipelineStage) -> str | None:
    """Return the name of this stage's copy of a weight that is both the first stage's embedding and the last
    stage's head; None without such a weight, or with both copies on this stage.
    """
    trunk = stage.trunk
    if not trunk.share_embeddings_and_output_weights or (trunk.pre_process and trunk.post_process):
        return None
    return _EMBEDDING if trunk.pre_process else _OUTPUT if trunk.post_process else None


def is_counted(name: str, stage: PipelineStage, conversion: WeightConversion) -> bool:
    """Return True when the gradient norm counts this rank's copy, among its tensor and pipeline ranks."""
    if name == _OUTPUT and tied_weight_name(stage) == _OUTPUT:
        return False
    is_split = any(part.size != part.tensor_shape for part in conversion.slices_of(name))
    return is_split or conversion.layout.tensor_rank == 0


def all_reduce_shared(
    gradients: dict[str, tuple[nn.Parameter, Tensor]], stage: PipelineStage, groups: ParallelGroups
) -> None:
    """Sum gradients in place, over tensor ranks and over the stages that share a weight. Collective.

    Args:
        gradients: Parameter and fp32 gradient by name.
    """
    shared = [
        gradient
        for name, (parameter, gradient) in gradients.items()
        if sums_over_tensor_ranks(name, parameter)
    ]
    if shared and groups.tensor.size() > 1:
        flat = torch.cat([gradient.flatten() for gradient in shared])
        dist.all_reduce(flat, group=groups.tensor)
        sizes = [gradient.numel() for gradient in shared]
        for gradient, reduced in zip(shared, torch.split(flat, sizes), strict=True):
            gradient.copy_(reduced.view_as(gradient))
    tied = tied_weight_name(stage)
    if tied is not None and tied in gradients:
        assert groups.embeddings is not None
        dist.all_reduce(gradients[tied][1], group=groups.embeddings)
