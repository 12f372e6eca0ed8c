"""How a trainer's ranks divide a model: from the spec, without a process."""

from dataclasses import dataclass

from kubealign.plan import parameters
from kubealign.plan.errors import PlanError
from kubealign.plan.shape import ModelShape
from kubealign.spec.training import Trainer


@dataclass(frozen=True)
class Division:
    """Ranks by what they share: matrices (tensor), layers (pipeline), tokens (context), experts, sequences
    (data). sharded: data ranks share every weight (FSDP2). tensor x pipeline x context x data = ranks."""

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


def division_of(trainer: Trainer) -> Division:
    """The torch backend shards over all ranks; megatron's are what the spec says, and the rest is data."""
    megatron = trainer.backend.megatron
    if megatron is None:
        return Division(data=trainer.ranks, sharded=True)
    return Division(
        tensor=megatron.tensor_parallel,
        pipeline=megatron.pipeline_parallel,
        context=megatron.context_parallel,
        expert=megatron.expert_parallel,
        data=trainer.ranks // megatron.model_parallel,
    )


@dataclass(frozen=True)
class Stage:
    """What one pipeline stage holds of a model, as counts of one rank's weights. dense: of what data ranks
    repeat; experts: its share of the experts. layers: of the whole model's, which the stage computes."""

    index: int
    layers: range
    dense: int
    experts: int
    has_head: bool

    @property
    def weights(self) -> int:
        return self.dense + self.experts


def stages(shape: ModelShape, division: Division, has_vocabulary: bool = True) -> list[Stage]:
    """Each stage's share, in order; one stage where there is no pipeline. Matrices are divided by `tensor`,
    norms and routers are repeated, experts are divided by `expert` too. has_vocabulary: False for a trunk
    with a scalar head. Raises PlanError where layers, heads or experts cannot be divided."""
    _check(shape, division)
    return [_stage(shape, division, index, has_vocabulary) for index in range(division.pipeline)]


def _stage(shape: ModelShape, division: Division, index: int, has_vocabulary: bool) -> Stage:
    count = shape.layers // division.pipeline
    first, last = index == 0, index == division.pipeline - 1
    held = range(index * count, (index + 1) * count)
    repeated = sum(2 * parameters.norm(shape) + 2 * shape.head_width * shape.head_norms for _ in held)
    repeated += sum(shape.experts * shape.hidden for i in held if shape.is_sparse(i))
    experts = sum(shape.experts * parameters.expert(shape) for i in held if shape.is_sparse(i))
    matrices = sum(parameters.layer(shape, i) for i in held) - repeated - experts
    if first:
        matrices += parameters.embedding(shape)
    if last:
        repeated += parameters.norm(shape)
        if not has_vocabulary:
            repeated += shape.hidden
        elif not (shape.tied and first):
            # Tied to a table on another stage it is held a second time.
            matrices += parameters.embedding(shape)
    return Stage(
        index,
        held,
        -(-matrices // division.tensor) + repeated,
        -(-experts // (division.tensor * division.expert)),
        last,
    )


def _check(shape: ModelShape, division: Division) -> None:
    for name, parts, field, whole in (
        ("pipelineParallel", division.pipeline, "num_hidden_layers", shape.layers),
        ("tensorParallel", division.tensor, "num_attention_heads", shape.heads),
        ("expertParallel", division.expert, "num_experts", shape.experts or division.expert),
    ):
        if whole % parts:
            raise PlanError(f"{name} is {parts}; it must divide the model's {field} ({whole})")
