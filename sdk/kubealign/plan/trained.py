"""Memory of a trained model (policy or critic) on either backend."""

from dataclasses import dataclass

from kubealign.plan import parameters
from kubealign.plan.activations import ends, layer_cost
from kubealign.plan.division import Division, Stage, division_of, stages
from kubealign.plan.machine import CONTEXT, PROCESS, Device
from kubealign.plan.parts import Moment, highest
from kubealign.plan.shape import ModelShape
from kubealign.plan.states import megatron_states, torch_states, width
from kubealign.plan.vocabulary import head_working
from kubealign.plan.work import Work
from kubealign.spec.megatron import Recompute
from kubealign.spec.precision import Precision
from kubealign.spec.training import Trainer

#: Tokens per pack of the torch backend on a CPU; the same as in training/torch_backend/passes.py.
CPU_TOKENS = 1024


@dataclass(frozen=True)
class TrainedModel:
    """A model with its trainer and workload. has_vocabulary: False for a trunk with a scalar head."""

    shape: ModelShape
    trainer: Trainer
    work: Work
    device: Device
    has_vocabulary: bool = True

    @property
    def precision(self) -> Precision:
        """Precision of the computation."""
        found: Precision = self.trainer.backend.value.precision
        return found

    @property
    def weights(self) -> int:
        """Weights of the whole model."""
        count = parameters.total(self.shape) if self.has_vocabulary else parameters.trunk(self.shape)
        return count + (0 if self.has_vocabulary else self.shape.hidden)

    @property
    def adapted(self) -> int | None:
        """Weights of the whole adapter; None: no adapter."""
        lora = self.trainer.lora
        return None if lora is None else parameters.adapter(self.shape, lora)

    def tokens(self, replicas: int) -> int:
        """Return the tokens of one forward pass on one of `replicas` data-parallel ranks."""
        share = -(-self.work.minibatch_tokens // replicas)
        limit: int = self.trainer.backend.value.microbatch_tokens
        if self.device is Device.CPU and self.trainer.backend.torch is not None:
            limit = min(limit, CPU_TOKENS)
        return max(self.work.sequence, min(limit, share))


def trained(model: TrainedModel) -> Moment:
    """Return the memory peak of one rank in the stage with the largest peak."""
    base = {"process": CONTEXT if model.device is Device.GPU else PROCESS}
    if model.trainer.backend.megatron is None:
        peak = highest(_torch(model))
    else:
        division = division_of(model.trainer)
        all_stages = stages(model.shape, division, model.has_vocabulary)
        peak = highest(moment for stage in all_stages for moment in _megatron(model, stage, division))
    return Moment(peak.name, base | {name: size for name, size in peak.parts.items() if size})


def _torch(model: TrainedModel) -> list[Moment]:
    """Return the peaks of one update: the head's backward pass, the last layer's, and the optimiser step.

    An update usually has several forward passes, so gradients exist from the start.
    """
    shape, trainer, precision = model.shape, model.trainer, model.precision
    ranks, size = trainer.ranks, width(precision)
    states = torch_states(model.weights, model.adapted, precision, ranks)
    tokens = model.tokens(ranks)
    lean = precision is Precision.FLOAT32
    costs = [layer_cost(shape, index, precision, lean) for index in range(shape.layers)]
    spec = trainer.backend.torch
    recompute = Recompute.LAYERS if spec and spec.gradient_checkpointing else Recompute.NOTHING
    saved = sum(cost.kept(1, False, recompute) for cost in costs) + ends(
        shape, precision, model.has_vocabulary
    )
    again = max(cost.kept(1, False, Recompute.NOTHING) for cost in costs)
    working = max(cost.working for cost in costs) + (again if recompute is Recompute.LAYERS else 0)
    largest = max(parameters.embedding(shape), shape.hidden * shape.intermediate)
    head = head_working(shape, tokens, precision) if model.has_vocabulary else 0
    if model.adapted is not None and head:
        # A frozen head has no weight gradient.
        head -= size * parameters.embedding(shape)
    matrix = size * shape.hidden * shape.intermediate if model.adapted is None else 0
    trained_weights = model.weights if model.adapted is None else model.adapted
    step = 4 * -(-trained_weights // ranks) if model.device is Device.GPU else 8 * -(-largest // ranks)
    return [
        Moment(
            "head's backward",
            states
            | {"activations": int(tokens * saved), "head": head}
            | _gathered(model, size, in_layers=False),
        ),
        Moment(
            "layers' backward",
            states
            | {"activations": int(tokens * (saved + working)), "working": matrix}
            | _gathered(model, size, in_layers=True),
        ),
        Moment("optimiser's step", states | {"working": step}),
    ]


def _gathered(model: TrainedModel, size: int, in_layers: bool) -> dict[str, int]:
    """Return unsharded FSDP2 tensors: the embeddings, which stay gathered between the passes, two blocks and
    the buffer of a third.

    In the layers' backward pass also a block's gradient with its fp32 copy for the reduction, and the
    head's gradient, which is reduced at the end. One rank in fp32 is not sharded.
    """
    if model.trainer.ranks == 1 and model.precision is Precision.FLOAT32:
        return {}
    shape = model.shape
    block = max(parameters.layer(shape, index) for index in range(shape.layers))
    root = parameters.embedding(shape) + (parameters.head(shape) if model.has_vocabulary else 0)
    gathered = size * root + 3 * size * block
    if in_layers and model.adapted is None:
        gathered += (size + 4) * block + size * parameters.embedding(shape) * model.has_vocabulary
    return {"gathered": gathered}


def _megatron(model: TrainedModel, stage: Stage, division: Division) -> list[Moment]:
    """Return the peaks of a rank in this stage.

    With the 1F1B schedule (Narayanan et al. 2021), a stage holds as many microbatches as there are stages
    from it to the end.
    """
    shape, trainer, precision = model.shape, model.trainer, model.precision
    megatron = trainer.backend.megatron
    assert megatron is not None
    lora = trainer.lora
    adapted = None if lora is None else -(-parameters.adapter(shape, lora, stage.layers) // division.tensor)
    states = megatron_states(stage, adapted, trainer, division)
    tokens = -(-model.tokens(division.data) // division.context)
    costs = [layer_cost(shape, index, precision) for index in stage.layers]
    split, sequence = division.tensor, megatron.sequence_parallel
    saved = sum(cost.kept(split, sequence, megatron.recompute) for cost in costs)
    in_flight = division.pipeline - stage.index
    again = 0.0
    if megatron.recompute is not Recompute.NOTHING:
        again = max(
            cost.kept(split, sequence, Recompute.NOTHING) - cost.kept(split, sequence, megatron.recompute)
            for cost in costs
        )
    working = max(cost.working for cost in costs) / split + again
    if stage.has_head:
        saved += ends(shape, precision, model.has_vocabulary) / (split if sequence else 1)
    head = 0
    if stage.has_head and model.has_vocabulary:
        head = head_working(shape, tokens, precision, split)
    trained_weights = stage.weights if adapted is None else adapted
    share = division.replicas if megatron.distributed_optimizer else 1
    activations = int(tokens * (in_flight * saved + working))
    return [
        Moment(f"backward of stage {stage.index}", states | {"activations": activations, "head": head}),
        Moment(
            f"optimiser's step of stage {stage.index}", states | {"working": 4 * trained_weights // share}
        ),
    ]
