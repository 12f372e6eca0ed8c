"""Parallel layout of a trainer's ranks, computed from the spec."""

from dataclasses import dataclass

from kubealign.planning.errors import PlanError
from kubealign.planning.model import parameter_counts
from kubealign.planning.model.shape import ModelShape
from kubealign.spec.sections.training import Trainer


@dataclass(frozen=True)
class TrainerLayout:
    """Sizes of the parallel dimensions of a trainer.

    Ranks share matrices (tensor), layers (pipeline), tokens (context), experts (expert) or sequences
    (data); tensor x pipeline x context x data = ranks. sharded: all ranks shard all weights (FSDP2).
    """

    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    data: int = 1
    sharded: bool = False

    @property
    def replicas(self) -> int:
        """Ranks that hold the same dense weights."""
        return self.data * self.context

    @property
    def expert_replicas(self) -> int:
        """Ranks that hold the same experts."""
        return max(1, self.replicas // self.expert)


def trainer_layout(trainer: Trainer) -> TrainerLayout:
    """Return the layout: the torch backend shards over all ranks; the sizes are in the spec, and the rest is
    data parallelism.
    """
    torch, megatron = trainer.backend.torch, trainer.backend.megatron
    if megatron is None:
        context = 1 if torch is None else torch.context_parallel
        return TrainerLayout(context=context, data=trainer.ranks // context, sharded=True)
    return TrainerLayout(
        tensor=megatron.tensor_parallel,
        pipeline=megatron.pipeline_parallel,
        context=megatron.context_parallel,
        expert=megatron.expert_parallel,
        data=trainer.ranks // megatron.model_parallel,
    )


@dataclass(frozen=True)
class StageParameters:
    """Weight counts of one rank in one pipeline stage.

    Attributes:
        layers: Indices of the stage's layers in the model.
        dense: Weights replicated on data-parallel ranks.
        experts: Weights of the rank's experts.
    """

    index: int
    layers: range
    dense: int
    experts: int
    has_head: bool

    @property
    def weights(self) -> int:
        """All weights of the rank."""
        return self.dense + self.experts


def stage_parameters(
    shape: ModelShape, division: TrainerLayout, has_vocabulary: bool = True
) -> list[StageParameters]:
    """Return the weight counts of each stage in order; one stage without pipeline parallelism.

    Matrices are divided by `tensor`, norms and routers are replicated, and experts are also divided by
    `expert`.

    Args:
        has_vocabulary: False for a trunk with a scalar head.

    Raises:
        PlanError: Layers, heads or experts cannot be divided.
    """
    check_divisible(shape, division)
    return [_one_stage(shape, division, index, has_vocabulary) for index in range(division.pipeline)]


def _one_stage(
    shape: ModelShape, division: TrainerLayout, index: int, has_vocabulary: bool
) -> StageParameters:
    count = shape.layers // division.pipeline
    first, last = index == 0, index == division.pipeline - 1
    stage_layers = range(index * count, (index + 1) * count)
    repeated = sum(
        2 * parameter_counts.norm(shape) + 2 * shape.head_width * shape.head_norms for _ in stage_layers
    )
    repeated += sum(shape.experts * shape.hidden for i in stage_layers if shape.is_sparse(i))
    experts = sum(shape.experts * parameter_counts.expert(shape) for i in stage_layers if shape.is_sparse(i))
    matrices = sum(parameter_counts.layer(shape, i) for i in stage_layers) - repeated - experts
    if first:
        matrices += parameter_counts.embedding(shape)
    if last:
        repeated += parameter_counts.norm(shape)
        if not has_vocabulary:
            repeated += shape.hidden
        elif not (shape.tied and first):
            # A head tied to the embedding of another stage is stored a second time.
            matrices += parameter_counts.embedding(shape)
    return StageParameters(
        index,
        stage_layers,
        -(-matrices // division.tensor) + repeated,
        -(-experts // (division.tensor * division.expert)),
        last,
    )


def check_divisible(shape: ModelShape, division: TrainerLayout) -> None:
    """Raise PlanError when layers, heads or experts cannot be divided."""
    for name, parts, field, count in (
        ("pipelineParallel", division.pipeline, "num_hidden_layers", shape.layers),
        ("tensorParallel", division.tensor, "num_attention_heads", shape.heads),
        # Megatron gathers keys and values; the torch backend exchanges tokens for heads.
        ("contextParallel", division.context if division.sharded else 1, "num_attention_heads", shape.heads),
        ("expertParallel", division.expert, "num_experts", shape.experts or division.expert),
    ):
        if count % parts:
            raise PlanError(f"{name} is {parts}; it must divide the model's {field} ({count})")
