"""Process groups of a layout, as megatron-core's `parallel_state` creates and stores them."""

from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

from kubealign_services.training.collectives import ensure_process_group
from kubealign_services.training.megatron_backend.parallel.layout import ParallelLayout


@dataclass(frozen=True)
class ParallelGroups:
    """Process groups of this rank.

    Attributes:
        tensor: The parts of a matrix.
        context: The parts of each sequence.
        replicas: Ranks that hold the same dense weights, context x data.
        expert_replicas: Ranks that hold the same experts.
        embeddings: The first and the last stage; None elsewhere.
    """

    tensor: dist.ProcessGroup
    context: dist.ProcessGroup
    replicas: dist.ProcessGroup
    expert_replicas: dist.ProcessGroup
    embeddings: dist.ProcessGroup | None


# megatron-core stores its groups in globals; this is the process group and layout they were created from.
_initialised: list[Any] = []


def init_parallel_groups(
    layout: ParallelLayout, rank: int, world_size: int, timeout: float
) -> ParallelGroups:
    """Create the process groups, or return those of this process.

    Collective. Raises what `ensure_process_group` raises.

    Args:
        timeout: Seconds that the ranks wait for one another within a collective.
    """
    ensure_process_group(world_size)
    world = dist.group.WORLD
    if not (_initialised and _initialised[0] is world and _initialised[1] == layout):
        parallel_state.destroy_model_parallel()
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=layout.tensor,
            pipeline_model_parallel_size=layout.pipeline,
            context_parallel_size=layout.context,
            expert_model_parallel_size=layout.expert,
            distributed_timeout_minutes=timeout / 60,
            create_gloo_process_groups=False,
        )
        # No random numbers are drawn (no dropout, no initial weights), but the RNG tracker is still accessed.
        model_parallel_cuda_manual_seed(0, inference_rng_tracker=True)
        _initialised[:] = [world, layout]
    return _groups(rank)


def _groups(rank: int) -> ParallelGroups:
    embeddings = parallel_state.get_embedding_group(check_initialized=False)
    is_member = embeddings is not None and rank in dist.get_process_group_ranks(embeddings)
    return ParallelGroups(
        tensor=parallel_state.get_tensor_model_parallel_group(),
        context=parallel_state.get_context_parallel_group(),
        replicas=parallel_state.get_data_parallel_group(with_context_parallel=True),
        expert_replicas=parallel_state.get_expert_data_parallel_group(),
        embeddings=embeddings if is_member else None,
    )
