"""Network traffic and weight transfer, compared with hand-computed values."""

import dataclasses
from typing import Any

import pytest

from kubealign.planning.machine import Device, Machine
from kubealign.planning.memory.trainer import TrainedModel
from kubealign.planning.model import parameter_counts
from kubealign.planning.model.shape import parse_model_shape
from kubealign.planning.traffic import estimate_traffic, ring_bytes
from kubealign.planning.weight_transfer import estimate_weight_transfer
from kubealign.planning.workload import Workload
from kubealign.spec.sections.megatron import MegatronBackendSpec
from kubealign.spec.sections.precision import Precision
from kubealign.spec.sections.training import Backend, Lora, TorchBackendSpec, Trainer

pytestmark = pytest.mark.timeout(60)

SHAPE = parse_model_shape(
    {
        "model_type": "llama",
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "vocab_size": 10,
    },
    "test",
)
WORK = Workload(prompt=4, response=4, sequences=8, epochs=1, updates=2)
WEIGHTS = parameter_counts.total(SHAPE)


def model(ranks: int, lora: Lora | None = None, **megatron: Any) -> TrainedModel:
    backend = Backend(torch=TorchBackendSpec(microbatch_tokens=8))
    if megatron:
        backend = Backend(megatron=MegatronBackendSpec(**megatron))
    return TrainedModel(SHAPE, Trainer(ranks=ranks, backend=backend, lora=lora), WORK, Device.GPU)


def sent(what: TrainedModel, machine: Machine | None = None) -> dict[str, int]:
    return {each.direction: each.sent for each in estimate_traffic(what, machine or Machine())}


def test_a_ring_omits_the_own_share() -> None:
    assert [ring_bytes(1, 12), ring_bytes(2, 12), ring_bytes(4, 12)] == [0, 6, 9]


def test_one_rank_sends_nothing() -> None:
    assert sent(model(1)) == {}


def test_fsdp_gathers_twice_and_reduces_once_per_pass() -> None:
    # 64 tokens over two ranks, 8 a pass: 4 passes.
    assert sent(model(2)) == {"data": 4 * (4 + 4 + 4) * WEIGHTS // 2}


@pytest.mark.parametrize("key_heads", [2, 1])
@pytest.mark.parametrize(("checkpointing", "times"), [(False, 2), (True, 3)])
def test_context_parallelism_exchanges_queries_keys_values_and_results(
    key_heads: int, checkpointing: bool, times: int
) -> None:
    """A single key head is repeated for both ranks."""
    spec = TorchBackendSpec(microbatch_tokens=8, context_parallel=2, gradient_checkpointing=checkpointing)
    shape = dataclasses.replace(SHAPE, key_heads=key_heads)
    trainer = Trainer(ranks=2, backend=Backend(torch=spec))
    shared = TrainedModel(shape, trainer, WORK, Device.GPU)
    # Two layers; each rank has 32 of 64 tokens, of 4 x 8 numbers of 4 bytes, and keeps half of them. A pass
    # has 16 tokens.
    assert sent(shared) == {
        "context": 2 * times * 32 * (4 * 8 * 4) // 2,
        "data": 4 * (4 + 4 + 4) * parameter_counts.total(shape) // 2,
    }


def test_tensor_parallelism_reduces_four_times_per_layer() -> None:
    # Two layers, 64 tokens of 8 numbers of 4 bytes; a sum is twice a ring's half.
    assert sent(model(2, tensor_parallel=2)) == {"tensor": 2 * 4 * 2 * (64 * 8 * 4) // 2}
    again = sent(model(2, tensor_parallel=2, recompute="Layers"))
    assert again == {"tensor": 2 * 6 * 2 * (64 * 8 * 4) // 2}


def test_pipeline_sends_states_and_gradients() -> None:
    assert sent(model(2, pipeline_parallel=2)) == {"pipeline": 2 * 64 * 8 * 4}


def test_distributed_optimizer_reduces_and_gathers_once_per_update() -> None:
    assert sent(model(2, tensor_parallel=1, precision=Precision.BFLOAT16)) == {
        "data": 2 * (4 + 2) * WEIGHTS // 2
    }


def test_traffic_between_nodes_uses_the_network_rate() -> None:
    machine = Machine(devices=2, link_rate=100.0, network_rate=10.0)
    traffic = {each.direction: each for each in estimate_traffic(model(4, tensor_parallel=2), machine)}
    assert traffic["tensor"].is_within_node and traffic["tensor"].seconds == pytest.approx(
        traffic["tensor"].sent / 100
    )
    assert not traffic["data"].is_within_node and traffic["data"].seconds == pytest.approx(
        traffic["data"].sent / 10
    )


def test_weight_transfer() -> None:
    machine = Machine(copy_rate=100.0, network_rate=1.0)
    transfer = estimate_weight_transfer(model(1), 3, machine)
    assert (transfer.sent, transfer.snapshot) == (4 * WEIGHTS, 8 * WEIGHTS)
    assert transfer.shared_seconds == pytest.approx(2.4 * 4 * WEIGHTS / 100)
    assert transfer.stream_seconds == pytest.approx(3 * 4 * WEIGHTS)


def test_only_the_adapter_is_transferred() -> None:
    lora = Lora(rank=1)
    assert estimate_weight_transfer(model(1, lora), 1, Machine()).sent == 4 * parameter_counts.adapter(
        SHAPE, lora
    )
