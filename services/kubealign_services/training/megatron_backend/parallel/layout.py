"""Position of a rank when a model is split tensor x context x data x pipeline. Pure arithmetic.

Ranks are numbered as megatron-core numbers them (its order tp-cp-ep-dp-pp): neighbours share tensors, the
stages of the pipeline are farthest apart. Experts are spread over ranks that hold the same dense layers: the
context and data-parallel ranks.
"""

from dataclasses import dataclass

from kubealign.spec.sections.megatron import MegatronBackendSpec
from kubealign_services.training.megatron_backend.model.architecture import ModelArchitecture


@dataclass(frozen=True)
class ParallelLayout:
    """Number of ranks in each parallel dimension, and this rank's index in each, from 0.

    expert counts ranks among context x data; it splits nothing but a mixture's experts.
    """

    tensor: int = 1
    tensor_rank: int = 0
    pipeline: int = 1
    pipeline_rank: int = 0
    context: int = 1
    context_rank: int = 0
    expert: int = 1
    expert_rank: int = 0
    data: int = 1
    data_rank: int = 0

    @classmethod
    def from_spec(cls, spec: MegatronBackendSpec, rank: int, world_size: int) -> "ParallelLayout":
        """Compute the layout of a rank. Raises ValueError when the ranks cannot be split as the spec says."""
        tensor, context, pipeline = spec.tensor_parallel, spec.context_parallel, spec.pipeline_parallel
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} of {world_size}")
        if world_size % spec.model_parallel:
            raise ValueError(
                f"trainer.ranks: {world_size}; it must be a multiple of tensorParallel x pipelineParallel x "
                f"contextParallel ({spec.model_parallel})"
            )
        data = world_size // spec.model_parallel
        if (context * data) % spec.expert_parallel:
            raise ValueError(
                f"backend.megatron.expertParallel: {spec.expert_parallel}; it must divide the ranks "
                f"that hold the same layers ({context} context x {data} data)"
            )
        rest, tensor_rank = divmod(rank, tensor)
        rest, context_rank = divmod(rest, context)
        pipeline_rank, data_rank = divmod(rest, data)
        return cls(
            tensor=tensor,
            tensor_rank=tensor_rank,
            pipeline=pipeline,
            pipeline_rank=pipeline_rank,
            context=context,
            context_rank=context_rank,
            expert=spec.expert_parallel,
            expert_rank=(context_rank + context * data_rank) % spec.expert_parallel,
            data=data,
            data_rank=data_rank,
        )

    @property
    def is_first_stage(self) -> bool:
        """True when the embeddings are on this rank."""
        return self.pipeline_rank == 0

    @property
    def is_last_stage(self) -> bool:
        """True when the heads are on this rank."""
        return self.pipeline_rank == self.pipeline - 1

    @property
    def replica_rank(self) -> int:
        """Index of this replica of the dense layers, from 0 to context x data - 1."""
        return self.context_rank + self.context * self.data_rank

    @property
    def expert_replica_rank(self) -> int:
        """Index of this replica of the experts: 0 for their first owner."""
        return self.replica_rank // self.expert


def layer_range(layers: int, layout: ParallelLayout) -> range:
    """Return the model's layers on this rank's stage.

    Raises ValueError when the stages cannot have equally many.
    """
    if layers % layout.pipeline:
        raise ValueError(
            f"backend.megatron.pipelineParallel: {layout.pipeline}; the model has {layers} layers, "
            "which it must divide"
        )
    each = layers // layout.pipeline
    return range(layout.pipeline_rank * each, (layout.pipeline_rank + 1) * each)


class UnsuitedLayout(ValueError):
    """The model cannot be split in this layout.

    The message names the spec's field and the number it must divide.
    """


def check_layout(shape: ModelArchitecture, layout: ParallelLayout) -> None:
    """Raise UnsuitedLayout when the model cannot be split as the layout says."""
    counts = {"attention heads": shape.heads, "key and value heads": shape.kv_heads}
    if not all(shape.is_sparse(layer) for layer in range(shape.layers)):
        counts["rows of each feed-forward layer"] = shape.mlp_size
    if shape.mixture is not None:
        counts["rows of each expert"] = shape.mixture.expert_size
        counts["rows of the shared expert"] = shape.mixture.shared_expert_size
    for noun, count in counts.items():
        if count % layout.tensor:
            raise _unsuited_layout("tensorParallel", layout.tensor, f"{count} {noun}")
    try:
        layer_range(shape.layers, layout)
    except ValueError as error:
        raise UnsuitedLayout(str(error)) from error
    if shape.mixture is None and layout.expert > 1:
        raise UnsuitedLayout(
            f"backend.megatron.expertParallel: {layout.expert}; the model has no experts: set 1"
        )
    if shape.mixture is not None and shape.mixture.experts % layout.expert:
        raise _unsuited_layout("expertParallel", layout.expert, f"{shape.mixture.experts} experts")


def _unsuited_layout(field: str, value: int, has: str) -> UnsuitedLayout:
    return UnsuitedLayout(f"backend.megatron.{field}: {value}; the model has {has}, which it must divide")
