"""Network traffic of one trainer rank in a step, by parallel dimension, and of the recorded experts.

A ring of n ranks moves (n - 1)/n of the bytes for an all-gather or a reduce-scatter, and twice that for an
all-reduce (Patarasuk and Yuan 2009).
"""

from dataclasses import dataclass
from math import gcd

from kubealign.planning.machine import Machine
from kubealign.planning.memory.optimizer_states import bytes_per_value
from kubealign.planning.memory.trainer import TrainedModel
from kubealign.planning.model.routing_record import routing_record_bytes
from kubealign.planning.model.shape import ModelShape
from kubealign.planning.model.trainer_layout import TrainerLayout, stage_parameters, trainer_layout
from kubealign.planning.workload import Workload
from kubealign.spec.sections.megatron import Recompute


@dataclass(frozen=True)
class Traffic:
    """Traffic in one parallel dimension.

    Attributes:
        sent: Bytes that one rank sends in a step.
        seconds: Time at the machine's rates, without overlap with computation.
        is_within_node: True if the communicating ranks share a node.
    """

    direction: str
    sent: int
    seconds: float
    is_within_node: bool


@dataclass(frozen=True)
class RoutingRecord:
    """Recorded experts that the rollouts of a job carry with rollout.routingReplay.

    Attributes:
        token: Bytes of one token.
        step: Bytes of the sequences of one step: once on the bus, and once in the batch for the trainer.
    """

    token: int
    step: int


def estimate_routing_record(shape: ModelShape, work: Workload) -> RoutingRecord:
    """Estimate the recorded experts of a step if all sequences have the maximum length."""
    token = routing_record_bytes(sum(shape.sparse), shape.experts, shape.experts_per_token)
    return RoutingRecord(token, token * work.tokens)


def ring_bytes(ranks: int, count: float) -> float:
    """Return bytes that one of n ranks sends in a ring all-gather or reduce-scatter of `count` bytes."""
    return count * (ranks - 1) / ranks


def estimate_traffic(model: TrainedModel, machine: Machine) -> list[Traffic]:
    """Estimate the traffic by parallel dimension; dimensions of size 1 are omitted."""
    division = trainer_layout(model.trainer)
    sent = _fsdp_bytes(model, division) if division.sharded else _megatron_bytes(model, division)
    # Adjacent ranks are tensor-parallel, then context-parallel, then data-parallel; stages are most distant.
    spans = {
        "tensor": division.tensor,
        "context": division.tensor * division.context,
        "expert": division.tensor * division.expert,
        "data": division.tensor * division.replicas,
        "pipeline": model.trainer.ranks,
    }
    results = []
    for direction, count in sent.items():
        within = spans[direction] <= machine.devices
        rate = machine.link_rate if within else machine.network_rate
        if count:
            results.append(Traffic(direction, int(count), count / rate, within))
    return results


def _forward_passes(model: TrainedModel, replicas: int) -> float:
    """Return the forward passes of one rank in a step."""
    return max(1.0, model.work.tokens * model.work.epochs / replicas / model.pass_tokens(replicas))


def _fsdp_bytes(model: TrainedModel, division: TrainerLayout) -> dict[str, float]:
    """Return FSDP2 traffic: weights are gathered in each forward and each backward pass, gradients are
    reduced after each.

    Context-parallel ranks exchange queries, keys and values before each attention and its result afterwards,
    and the gradients in the backward pass: an all-to-all sends (n - 1)/n of the bytes. Key and value heads
    are repeated where there are fewer than ranks.
    """
    size, shape = bytes_per_value(model.precision), model.shape
    summed = 4 * (model.weights if model.adapter_weights is None else model.adapter_weights)
    once = ring_bytes(division.replicas, 2 * size * model.weights + summed)
    tokens = model.work.tokens * model.work.epochs / division.replicas
    keys = shape.key_width * division.context // gcd(shape.key_heads, division.context)
    torch = model.trainer.backend.torch
    times = 3 if torch is not None and torch.gradient_checkpointing else 2
    exchanged = shape.layers * times * tokens * size * (2 * shape.query_width + 2 * keys)
    return {
        "context": ring_bytes(division.context, exchanged),
        "data": _forward_passes(model, division.data) * once,
    }


def _megatron_bytes(model: TrainedModel, division: TrainerLayout) -> dict[str, float]:
    megatron = model.trainer.backend.megatron
    assert megatron is not None
    shape, size = model.shape, bytes_per_value(model.precision)
    tokens = model.work.tokens * model.work.epochs / division.data / division.context
    all_stages = stage_parameters(shape, division, model.has_vocabulary)
    stage = max(all_stages, key=lambda each: each.weights)
    layers = len(stage.layers)
    sparse = sum(shape.is_sparse(index) for index in stage.layers)
    states = tokens * shape.hidden * size
    # Twice forward (after attention and after the MLP), twice backward, and twice again if layers are
    # recomputed; with sequence parallelism all-gather and reduce-scatter cost the same.
    times = 6 if megatron.recompute is Recompute.LAYERS else 4
    adapted = model.adapter_weights
    trained_weights = stage.weights if adapted is None else adapted // (division.tensor * division.pipeline)
    gradients = 4 * trained_weights + size * trained_weights * megatron.distributed_optimizer
    if not megatron.distributed_optimizer:
        gradients *= 2
    is_sequence_parallel = megatron.sequence_parallel and division.tensor > 1
    return {
        "tensor": layers * times * 2 * ring_bytes(division.tensor, states),
        # Keys and values of the other ranks in the forward and backward pass, and their gradients.
        "context": layers
        * 3
        * ring_bytes(division.context, 1)
        * tokens
        * division.context
        * 2
        * shape.key_width
        * size
        / division.tensor,
        "expert": sparse
        * 4
        * ring_bytes(division.expert, states * shape.experts_per_token / division.tensor),
        "data": model.work.updates * ring_bytes(division.replicas, gradients),
        "pipeline": 2 * states / (division.tensor if is_sequence_parallel else 1) * (division.pipeline > 1),
    }
