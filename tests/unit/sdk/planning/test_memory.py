"""Memory by part, compared with hand-computed values and the formulas of the papers."""

import dataclasses
from typing import Any

import pytest

from kubealign.planning.errors import PlanError
from kubealign.planning.machine import CUDA_CONTEXT_BYTES, PROCESS_BYTES, Device, Machine
from kubealign.planning.memory.activations import (
    LOGITS_PER_CHUNK,
    head_working_bytes,
    layer_activations,
    output_activations,
)
from kubealign.planning.memory.engine import PAGE_TOKENS, cache_bytes, engine_memory
from kubealign.planning.memory.frozen_model import frozen_model_memory
from kubealign.planning.memory.gathered import gathered_bytes
from kubealign.planning.memory.optimizer_states import megatron_state_bytes, torch_state_bytes
from kubealign.planning.memory.quantized_base import QuantizedBase, quantized_base
from kubealign.planning.memory.trainer import (
    CPU_PACK_TOKENS,
    TrainedModel,
    _torch_peaks,
    offloaded_activations,
    trainer_memory,
)
from kubealign.planning.model import parameter_counts
from kubealign.planning.model.shape import parse_model_shape
from kubealign.planning.model.trainer_layout import TrainerLayout, stage_parameters, trainer_layout
from kubealign.planning.workload import Workload
from kubealign.spec.sections.engines import (
    Engine,
    OpenAIEngineSpec,
    TensorRTLLMEngineSpec,
    TorchEngineSpec,
    VllmEngineSpec,
)
from kubealign.spec.sections.megatron import MegatronBackendSpec, Recompute
from kubealign.spec.sections.precision import Precision
from kubealign.spec.sections.rollout import SamplingSpec
from kubealign.spec.sections.training import (
    Backend,
    BaseQuantization,
    Lora,
    Nf4Quantization,
    TorchBackendSpec,
    Trainer,
)
from kubealign_services.generation.torch_engine import ragged_batch
from kubealign_services.training.torch_backend.logprobs import chunked_logits
from kubealign_services.training.torch_backend.passes import microbatch_passes

pytestmark = pytest.mark.timeout(60)

SHAPE = parse_model_shape(
    {
        "model_type": "llama",
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "vocab_size": 10,
    },
    "test",
)
WORK = Workload(prompt=4, response=4, sequences=8, epochs=1, updates=2)
BF16, FP16, FP32 = Precision.BFLOAT16, Precision.FLOAT16, Precision.FLOAT32


def megatron(**fields: Any) -> Trainer:
    ranks = fields.pop("ranks")
    return Trainer(ranks=ranks, backend=Backend(megatron=MegatronBackendSpec(**fields)))


def test_constants_equal_those_of_the_services() -> None:
    assert chunked_logits._CHUNK_LOGITS == LOGITS_PER_CHUNK
    assert ragged_batch.PAGE_TOKENS == PAGE_TOKENS
    assert microbatch_passes._CPU_PACK_TOKENS == CPU_PACK_TOKENS


def test_torch_states_are_sixteen_bytes_per_weight_over_the_ranks() -> None:
    assert torch_state_bytes(100, None, BF16, 1) == {"weights": 400, "gradients": 400, "optimizer": 800}
    assert torch_state_bytes(100, None, FP32, 3) == {"weights": 134, "gradients": 134, "optimizer": 267}


def test_fp16_costs_what_bf16_costs() -> None:
    assert torch_state_bytes(100, None, FP16, 1) == torch_state_bytes(100, None, BF16, 1)
    assert torch_state_bytes(100, 10, FP16, 1) == torch_state_bytes(100, 10, BF16, 1)
    assert layer_activations(SHAPE, 0, FP16) == layer_activations(SHAPE, 0, BF16)
    assert output_activations(SHAPE, FP16, True) == output_activations(SHAPE, BF16, True)
    assert head_working_bytes(SHAPE, 6, FP16) == head_working_bytes(SHAPE, 6, BF16)
    assert cache_bytes(SHAPE, 16, FP16) == cache_bytes(SHAPE, 16, BF16)
    tokens, device = 64, Device.CPU
    half, other = (frozen_model_memory(SHAPE, each, tokens, device, True) for each in (FP16, BF16))
    assert half == other


def test_a_sharded_frozen_model_holds_its_share_and_what_fsdp2_gathers() -> None:
    total, trunk = 4 * parameter_counts.total(SHAPE), 4 * parameter_counts.trunk(SHAPE)
    unsharded = frozen_model_memory(SHAPE, FP32, 64, Device.GPU, True)
    parts = frozen_model_memory(SHAPE, FP32, 64, Device.GPU, True, ranks=3).parts
    # Embeddings and head of 10 x 8; a block of queries 8 x 8, keys and values 4 x 8 each, output 8 x 8, three
    # matrices of 8 x 16 and two norms; two blocks are gathered, and a third one being prefetched.
    block = 8 * 8 + 2 * 4 * 8 + 8 * 8 + 3 * 8 * 16 + 2 * 8
    gathered = 4 * (2 * 10 * 8 + 3 * block)
    assert parts == {**unsharded.parts, "weights": -(-total // 3), "gathered": gathered}
    # Each member of an ensemble is sharded; their passes follow one another.
    parts = frozen_model_memory(SHAPE, FP32, 64, Device.GPU, False, count=2, ranks=2).parts
    assert parts["weights"] == 2 * -(-trunk // 2)
    assert parts["gathered"] == gathered - 4 * 10 * 8


def test_a_rank_on_a_cpu_loads_the_whole_model_first() -> None:
    large = dataclasses.replace(SHAPE, layers=200)
    peak = frozen_model_memory(large, FP32, 8, Device.CPU, True, ranks=8)
    assert peak.name == "loading" and peak.parts["weights"] == 4 * parameter_counts.total(large)


def test_only_the_adapter_has_optimizer_states() -> None:
    assert torch_state_bytes(100, 10, BF16, 1) == {"weights": 240, "gradients": 40, "optimizer": 80}


@pytest.mark.parametrize(
    ("precision", "distributed", "weights", "optimizer"),
    [(BF16, True, 2, 12 / 4), (BF16, False, 2, 12), (FP32, True, 4, 8 / 4), (FP32, False, 4, 8)],
)
def test_megatron_states(precision: Precision, distributed: bool, weights: int, optimizer: float) -> None:
    trainer = megatron(ranks=4, precision=precision, distributed_optimizer=distributed)
    division = trainer_layout(trainer)
    assert division == TrainerLayout(data=4)
    (stage,) = stage_parameters(SHAPE, division)
    count = parameter_counts.total(SHAPE)
    assert megatron_state_bytes(stage, None, trainer, division) == {
        "weights": weights * count,
        "gradients": 4 * count,
        "optimizer": int(optimizer * count),
    }


def test_layer_activations() -> None:
    cost = layer_activations(SHAPE, 0, FP32)
    # Two norms: input, normalised and result of 8; queries 8, keys and values repeated to 8, result 8 and
    # once more 8, two normalisers; gate, up, activation and product of 16.
    assert cost.saved_bytes(1, False, Recompute.NOTHING) == 4 * (2 * 3 * 8 + 5 * 8 + 2 + 4 * 16)
    assert cost.saved_bytes(1, False, Recompute.LAYERS) == 4 * 8
    # Recomputed from queries of 8, keys and values of 4 each; the projection keeps the result.
    assert cost.saved_bytes(1, False, Recompute.ATTENTION) == 4 * (2 * 3 * 8 + (8 + 4 + 4) + 8 + 4 * 16)
    # Without the normalised inputs, the activation and the product.
    lean = layer_activations(SHAPE, 0, FP32, fused=True)
    assert lean.saved_bytes(1, False, Recompute.NOTHING) == 4 * (2 * 2 * 8 + 5 * 8 + 2 + 2 * 16)


def test_tensor_and_sequence_parallelism_divide_activations() -> None:
    cost = layer_activations(SHAPE, 0, BF16)
    norms, rest = 2 * (4 + 2 + 2) * 8, 2 * (5 * 8 + 4 * 16) + 8
    assert cost.saved_bytes(1, True, Recompute.NOTHING) == norms + rest
    assert cost.saved_bytes(2, False, Recompute.NOTHING) == norms + rest / 2
    assert cost.saved_bytes(2, True, Recompute.NOTHING) == (norms + rest) / 2
    assert cost.saved_bytes(2, True, Recompute.LAYERS) == 2 * 8 / 2


def test_head_memory_is_two_chunks_and_a_gradient() -> None:
    assert head_working_bytes(SHAPE, 6, FP32) == 8 * 6 * 10 + 4 * 80
    large = SHAPE.with_vocabulary(LOGITS_PER_CHUNK)
    assert head_working_bytes(large, 6, FP32) == 8 * LOGITS_PER_CHUNK + 4 * 8 * LOGITS_PER_CHUNK


def test_peak_of_one_rank_in_fp32() -> None:
    trainer = Trainer(backend=Backend(torch=TorchBackendSpec(microbatch_tokens=16)))
    peak = trainer_memory(TrainedModel(SHAPE, trainer, WORK, Device.CPU))
    weights = 2 * 80 + 2 * (2 * 64 + 2 * 32 + 3 * 128 + 16) + 8
    layers, ends = 2 * 4 * (32 + 40 + 2 + 32), 4 * (2 * 8 + 2 * 8)
    assert peak.name == "layers' backward"
    assert peak.parts["weights"] + peak.parts["gradients"] + peak.parts["optimizer"] == 16 * weights
    assert peak.parts["activations"] == 16 * (layers + ends + 4 * (3 * 16 + 8))


def test_a_long_sequence_has_its_own_pass() -> None:
    trainer = Trainer(backend=Backend(torch=TorchBackendSpec(microbatch_tokens=2)))
    model = TrainedModel(SHAPE, trainer, WORK, Device.CPU)
    assert model.pass_tokens(1) == 8


def torch_ranks(ranks: int, context: int, tokens: int) -> Trainer:
    spec = TorchBackendSpec(microbatch_tokens=tokens, context_parallel=context)
    return Trainer(ranks=ranks, backend=Backend(torch=spec))


def test_context_ranks_share_a_long_sequence() -> None:
    work = Workload(prompt=4, response=28, sequences=8, epochs=1, updates=1)
    alone, shared = (
        trainer_memory(TrainedModel(SHAPE, torch_ranks(2, context, 4), work, Device.GPU))
        for context in (1, 2)
    )
    assert 2 * shared.parts["activations"] == alone.parts["activations"]
    for part in ("weights", "gradients", "optimizer", "gathered"):
        assert shared.parts[part] == alone.parts[part]


def test_the_limit_of_a_microbatch_is_per_context_rank() -> None:
    model = TrainedModel(SHAPE, torch_ranks(4, 2, 12), WORK, Device.GPU)
    assert trainer_layout(model.trainer) == TrainerLayout(context=2, data=2, sharded=True)
    # 32 tokens a minibatch.
    assert (model.pass_tokens(1), model.pass_tokens(2)) == (24, 16)
    limited = TrainedModel(SHAPE, torch_ranks(4, 2, 2 * CPU_PACK_TOKENS), WORK, Device.CPU)
    large = dataclasses.replace(WORK, sequences=1024)
    assert dataclasses.replace(limited, work=large).pass_tokens(1) == 2 * CPU_PACK_TOKENS


def test_context_ranks_that_cannot_share_the_heads_are_an_error() -> None:
    message = r"contextParallel is 4; it must divide the model's num_attention_heads \(2\)"
    with pytest.raises(PlanError, match=message):
        trainer_memory(TrainedModel(SHAPE, torch_ranks(4, 4, 8), WORK, Device.GPU))


def test_a_stage_holds_a_microbatch_for_each_later_stage() -> None:
    work = Workload(prompt=4, response=4, sequences=64, epochs=1, updates=1)
    trainer = megatron(ranks=2, pipeline_parallel=2, precision=BF16, microbatch_tokens=8)
    peak = trainer_memory(TrainedModel(SHAPE, trainer, work, Device.GPU))
    layer = 2 * (4 + 2 + 2) * 8 + 2 * (5 * 8 + 4 * 16) + 8
    assert peak.name == "backward of stage 0"
    assert peak.parts["process"] == CUDA_CONTEXT_BYTES
    assert peak.parts["activations"] == 8 * (2 * layer + 2 * (3 * 16 + 8))


def test_an_adapter_reduces_the_peak() -> None:
    full = trainer_memory(TrainedModel(SHAPE, Trainer(), WORK, Device.CPU))
    adapted = trainer_memory(TrainedModel(SHAPE, Trainer(lora=Lora(rank=1)), WORK, Device.CPU))
    assert adapted.parts["optimizer"] == 8 * parameter_counts.adapter(SHAPE, Lora(rank=1))
    assert adapted.total < full.total


def quantised(double: bool) -> Lora:
    quantization = BaseQuantization(nf4=Nf4Quantization(double_quantization=double))
    return Lora(rank=1, quantization=quantization)


WIDE = parse_model_shape(
    {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 192,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "vocab_size": 10,
    },
    "test",
)


def test_a_quantised_base_has_half_a_byte_a_weight_and_scales() -> None:
    # Queries and outputs 64 x 64, keys and values 32 x 64 each, three matrices of 64 x 192.
    matrices = [64 * 64] * 2 + [32 * 64] * 2 + [64 * 192] * 3
    assert quantized_base(WIDE, None) == quantized_base(WIDE, Lora(rank=1)) == QuantizedBase()
    plain = quantized_base(WIDE, quantised(double=False))
    weights = 3 * sum(matrices)
    assert plain == QuantizedBase(weights, weights // 2, 4 * weights // 64, 64 * 192)
    # 64 and 32 scales are one block each, 192 too; 256 values and a mean for each matrix.
    nested = quantized_base(WIDE, quantised(double=True))
    assert nested == dataclasses.replace(plain, scales=weights // 64 + 21 * (4 + 4 * 257))
    assert quantized_base(WIDE, quantised(double=False), layer=1).weights == sum(matrices)
    # 4.127 bits a weight of a large model (QLoRA, section 3).
    large = dataclasses.replace(WIDE, hidden=8192, heads=64, key_heads=8, head_width=128, intermediate=28672)
    base = quantized_base(large, quantised(double=True))
    assert 8 * (base.packed + base.scales) / base.weights == pytest.approx(4.127, abs=1e-3)
    # A row of 8 weights is no whole block.
    assert quantized_base(SHAPE, quantised(double=True)) == QuantizedBase()


def test_ranks_share_the_levels_and_repeat_the_scales() -> None:
    base = QuantizedBase(weights=80, packed=40, scales=7, largest=80)
    assert torch_state_bytes(100, 10, BF16, 1, base)["weights"] == 2 * 20 + 40 + 7 + 4 * 10
    assert torch_state_bytes(100, 10, FP32, 3, base)["weights"] == -(-(4 * 20 + 40 + 4 * 10) // 3) + 7


def test_gathered_blocks_are_quantised() -> None:
    dense, lora = gathered_bytes(WIDE, 2, True), quantised(double=True)
    weights = quantized_base(WIDE, lora, 0).weights
    assert gathered_bytes(WIDE, 2, True, Lora(rank=1)) == dense
    assert gathered_bytes(WIDE, 2, True, lora) == dense - 3 * (2 * weights - weights // 2)


def test_quantising_a_base_on_a_cpu_needs_the_whole_model_first() -> None:
    large = dataclasses.replace(WIDE, layers=200)
    trainer = Trainer(lora=quantised(double=True))
    peak = trainer_memory(TrainedModel(large, trainer, WORK, Device.CPU))
    assert peak.name == "quantisation of the base"
    assert peak.parts["weights"] == 4 * parameter_counts.total(large)
    assert peak.parts["working"] == 10 * 64 * 192
    # The device of a GPU machine never has it: a dequantised matrix at a time.
    peak = trainer_memory(TrainedModel(large, trainer, WORK, Device.GPU))
    assert peak.name == "layers' backward" and peak.parts["working"] == 4 * 64 * 192
    dense = trainer_memory(TrainedModel(large, Trainer(lora=Lora(rank=1)), WORK, Device.GPU))
    assert peak.parts["weights"] < 0.2 * dense.parts["weights"]


@pytest.mark.parametrize("checkpointing", [False, True])
def test_offloaded_activations_are_in_host_memory(checkpointing: bool) -> None:
    deep = dataclasses.replace(WIDE, layers=50)

    def model(offload: bool, device: Device = Device.GPU) -> TrainedModel:
        spec = TorchBackendSpec(
            microbatch_tokens=16, gradient_checkpointing=checkpointing, activation_offload=offload
        )
        return TrainedModel(deep, Trainer(backend=Backend(torch=spec)), WORK, device)

    cost = layer_activations(WIDE, 0, FP32, fused=True)
    recompute = Recompute.LAYERS if checkpointing else Recompute.NOTHING
    layer, ends = cost.saved_bytes(1, False, recompute), output_activations(WIDE, FP32, True)
    assert offloaded_activations(model(False)) == {}
    assert offloaded_activations(model(True)) == {"activations": 16 * int(50 * layer + ends)}
    dense, moved = (_torch_peaks(model(each)) for each in (False, True))
    for one, other in zip(dense, moved, strict=True):
        assert one.name == other.name
        if "activations" in one.parts:
            assert one.parts["activations"] - other.parts["activations"] == 16 * int(49 * layer)
    # On a CPU both are the same memory.
    assert offloaded_activations(model(True, Device.CPU)) == {}
    assert trainer_memory(model(True, Device.CPU)) == trainer_memory(model(False, Device.CPU))


def test_context_ranks_offload_their_own_tokens() -> None:
    work = Workload(prompt=4, response=28, sequences=8, epochs=1, updates=1)

    def offloaded(context: int) -> int:
        spec = TorchBackendSpec(microbatch_tokens=4, context_parallel=context, activation_offload=True)
        trainer = Trainer(ranks=2, backend=Backend(torch=spec))
        return offloaded_activations(TrainedModel(SHAPE, trainer, work, Device.GPU))["activations"]

    assert 2 * offloaded(2) == offloaded(1) > 0


def test_kv_cache_bytes() -> None:
    # Keys and values of one head of 4 in two layers, in bf16.
    assert cache_bytes(SHAPE, 64, BF16) == 2 * 2 * 4 * 2 * 64
    # One head cannot be divided.
    assert cache_bytes(SHAPE, 64, BF16, tensor=2) == cache_bytes(SHAPE, 64, BF16)


def test_the_built_in_engine_has_pages_for_all_sequences_at_maximum_length() -> None:
    engine = Engine(torch=TorchEngineSpec(max_sequences=3, prefill_tokens=4))
    memory = engine_memory(SHAPE, engine, SamplingSpec(), WORK, Machine())
    # Whole pages of 16.
    pages = -(-WORK.sequence // 16)
    assert memory.peak.parts["cache"] == cache_bytes(SHAPE, 3 * pages * 16, FP32)
    assert memory.peak.parts["weights"] == 4 * parameter_counts.total(SHAPE)
    assert memory.peak.parts["activations"] >= 28 * 3 * 10
    assert memory.sequences == 3
    on_cpu = engine_memory(SHAPE, engine, SamplingSpec(), WORK, Machine(device=Device.CPU))
    assert on_cpu.peak.parts["weights"] == 2 * 4 * parameter_counts.total(SHAPE)


def test_the_built_in_engine_limits_sequences_to_its_memory() -> None:
    each = cache_bytes(SHAPE, -(-WORK.sequence // 16) * 16, FP32)
    room = Machine(memory=CUDA_CONTEXT_BYTES + 4 * parameter_counts.total(SHAPE) + 5 * each)
    half = Engine(torch=TorchEngineSpec(max_sequences=8, cache_share=0.5))
    # Half of five is two and a half.
    assert engine_memory(SHAPE, half, SamplingSpec(), WORK, room).sequences == 2
    stated = Engine(torch=TorchEngineSpec(max_sequences=8, cache_gib=4.5 * each / 2**30))
    assert engine_memory(SHAPE, stated, SamplingSpec(), WORK, room).sequences == 4
    none = Engine(torch=TorchEngineSpec(max_sequences=8, cache_gib=0.5 * each / 2**30))
    memory = engine_memory(SHAPE, none, SamplingSpec(), WORK, room)
    assert (memory.sequences, memory.peak.parts["cache"]) == (0, each)


def test_a_reference_in_the_engine_has_weights_and_half_of_the_cache() -> None:
    each, weights = cache_bytes(SHAPE, -(-WORK.sequence // 16) * 16, FP32), 4 * parameter_counts.total(SHAPE)
    engine = Engine(torch=TorchEngineSpec(max_sequences=8, cache_share=0.5))
    room = Machine(memory=CUDA_CONTEXT_BYTES + 2 * weights + 13 * each)
    memory = engine_memory(SHAPE, engine, SamplingSpec(), WORK, room, reference=SHAPE)
    assert (memory.peak.parts["weights"], memory.peak.parts["reference"]) == (weights, weights)
    # Half of thirteen is six and a half, of which each of both has three and a quarter.
    assert (memory.sequences, memory.peak.parts["cache"]) == (3, 2 * 3 * each)
    alone = engine_memory(SHAPE, engine, SamplingSpec(), WORK, room)
    assert memory.peak.parts["activations"] == alone.peak.parts["activations"]


def test_external_engines_use_the_remaining_memory() -> None:
    machine = Machine(memory=2 * CUDA_CONTEXT_BYTES)
    vllm = engine_memory(SHAPE, Engine(vllm=VllmEngineSpec(memory_share=0.9)), SamplingSpec(), WORK, machine)
    assert vllm.peak.total == int(0.9 * 2 * CUDA_CONTEXT_BYTES)
    assert vllm.sequences == 256
    each = cache_bytes(SHAPE, WORK.sequence, FP32)
    stated = Engine(vllm=VllmEngineSpec(memory_share=0.9, cache_gib=2.5 * each / 2**30))
    assert engine_memory(SHAPE, stated, SamplingSpec(), WORK, machine).sequences == 2
    tight = Machine(memory=CUDA_CONTEXT_BYTES + 2 * parameter_counts.total(SHAPE))
    none = engine_memory(SHAPE, Engine(tensorrt_llm=TensorRTLLMEngineSpec()), SamplingSpec(), WORK, tight)
    assert none.sequences == 0
    assert none.peak.total > tight.memory


def test_the_memory_of_an_inference_server_is_not_the_workers() -> None:
    engine = Engine(openai=OpenAIEngineSpec(url="http://vllm:8000", max_sequences=64))
    memory = engine_memory(SHAPE, engine, SamplingSpec(), WORK, Machine(memory=1))
    assert (memory.devices, memory.sequences, memory.allowed) == (0, 64, 64)
    assert memory.peak.parts == {"process": PROCESS_BYTES}
