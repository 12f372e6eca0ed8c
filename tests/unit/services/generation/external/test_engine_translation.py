"""Translation of requests and responses between the contract and vLLM or TensorRT-LLM."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from kubealign.spec.sections.engines import IdleMemoryPolicy, TensorRTLLMEngineSpec, VllmEngineSpec
from kubealign.spec.sections.precision import Precision
from kubealign_services.generation.contract import (
    FinishReason,
    GenerationRequest,
    RequestRefused,
    SamplingParameters,
)
from kubealign_services.generation.external.contract import ExternalSample
from kubealign_services.generation.external.samples import (
    check_sampling_support,
    is_truncated,
    to_generated_sample,
)
from kubealign_services.generation.external.tensorrt_llm import engine as tensorrt_engine
from kubealign_services.generation.external.tensorrt_llm import parameters as tensorrt
from kubealign_services.generation.external.tensorrt_llm.engine import TensorRTLLMExternalEngine
from kubealign_services.generation.external.vllm import engine as vllm_engine
from kubealign_services.generation.external.vllm import parameters as vllm
from kubealign_services.generation.external.vllm.engine import VllmExternalEngine
from kubealign_services.generation.external.vllm.parameters import TargetLayers
from kubealign_services.runtime.process.failures import PermanentFailure

pytestmark = pytest.mark.timeout(60)

SAMPLING = SamplingParameters(
    max_tokens=9, min_tokens=2, temperature=0.5, top_k=4, top_p=0.9, stop=("!",), stop_token_ids=(7,)
)


@dataclass
class Logprob:
    logprob: float


@dataclass
class Completion:
    token_ids: list[int]
    logprobs: Any


def request(sampling: SamplingParameters) -> GenerationRequest:
    return GenerationRequest("g", (1, 2), (5,), sampling)


@pytest.mark.parametrize("precision", list(Precision))
def test_external_engines_have_every_precision(precision: Precision) -> None:
    own = vllm.engine_arguments(Path("/m"), VllmEngineSpec(precision=precision), 512, on_cpu=False)
    other = tensorrt.engine_arguments(Path("/m"), TensorRTLLMEngineSpec(precision=precision), 512)
    assert own["dtype"] == other["dtype"] == precision.value.lower()


def test_vllm_starts_without_weights_and_with_the_worker_extension() -> None:
    spec = VllmEngineSpec(
        precision=Precision.BFLOAT16,
        tensor_parallel=4,
        pipeline_parallel=2,
        between_phases=IdleMemoryPolicy.FREED,
    )
    arguments = vllm.engine_arguments(Path("/m"), spec, 512, on_cpu=False)
    assert arguments["load_format"] == "dummy" and arguments["enable_sleep_mode"]
    assert (arguments["tensor_parallel_size"], arguments["pipeline_parallel_size"]) == (4, 2)
    assert (arguments["dtype"], arguments["max_model_len"], arguments["max_num_seqs"]) == (
        "bfloat16",
        512,
        256,
    )
    module, _, name = arguments["worker_extension_cls"].rpartition(".")
    # The module itself imports vLLM, which is not installed here.
    module_spec = find_spec(module)
    assert module_spec is not None and module_spec.origin is not None
    assert f"class {name}:" in Path(module_spec.origin).read_text()
    assert "enforce_eager" not in arguments and arguments["kv_cache_memory_bytes"] is None
    stated = vllm.engine_arguments(Path("/m"), VllmEngineSpec(cache_gib=0.5), 512, on_cpu=False)
    assert stated["kv_cache_memory_bytes"] == 2**29


@pytest.mark.parametrize(
    ("tensor", "on_cpu", "expected"),
    [
        (1, False, {"VLLM_NO_USAGE_STATS": "1"}),
        (
            1,
            True,
            {
                "VLLM_NO_USAGE_STATS": "1",
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "TORCH_COMPILE_DISABLE": "1",
                "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            },
        ),
        (
            2,
            True,
            {
                "VLLM_NO_USAGE_STATS": "1",
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "TORCH_COMPILE_DISABLE": "1",
            },
        ),
    ],
)
def test_vllm_has_variables_of_its_own(tensor: int, on_cpu: bool, expected: dict[str, str]) -> None:
    assert vllm.library_variables(VllmEngineSpec(tensor_parallel=tensor), on_cpu=on_cpu) == expected


@pytest.mark.parametrize(("context", "tokens"), [(512, 2048), (8192, 8192)])
def test_vllm_on_a_cpu_computes_each_prompt_in_one_pass(context: int, tokens: int) -> None:
    arguments = vllm.engine_arguments(Path("/m"), VllmEngineSpec(), context, on_cpu=True)
    assert not arguments["enable_chunked_prefill"] and arguments["max_num_batched_tokens"] == tokens
    assert (arguments["kv_cache_memory_bytes"], arguments["block_size"]) == (4 * 2**30, 32)
    freed = VllmEngineSpec(between_phases=IdleMemoryPolicy.FREED)
    # vLLM has no sleep mode there.
    assert not vllm.engine_arguments(Path("/m"), freed, context, on_cpu=True)["enable_sleep_mode"]


@pytest.mark.parametrize(("rank", "reserved"), [(1, 8), (8, 8), (9, 16), (257, 320), (512, 512)])
def test_vllm_reserves_memory_for_one_adapter_of_the_target_layers(rank: int, reserved: int) -> None:
    layers = TargetLayers(rank, ["model.layers.0.mlp.up_proj", "model.layers.1.mlp.up_proj", "head.q_proj"])
    arguments = vllm.engine_arguments(Path("/m"), VllmEngineSpec(), 512, on_cpu=False, adapter=layers)
    assert arguments["enable_lora"] and arguments["max_lora_rank"] == reserved
    assert arguments["max_loras"] == arguments["max_cpu_loras"] == 1
    assert arguments["lora_target_modules"] == ["q_proj", "up_proj"]
    assert "enable_lora" not in vllm.engine_arguments(Path("/m"), VllmEngineSpec(), 512, on_cpu=False)


def test_vllm_refuses_adapters_that_it_cannot_apply() -> None:
    with pytest.raises(ValueError, match=r"trainer\.lora\.rank 513; .* at most rank 512"):
        vllm.engine_arguments(
            Path("/m"), VllmEngineSpec(), 512, on_cpu=False, adapter=TargetLayers(513, ["q_proj"])
        )
    layers = TargetLayers(8, ["layers.0.q_proj", "layers.0.conv", "layers.1.conv"])
    vllm_engine.check_adaptable(layers, {"conv", "q_proj"})
    with pytest.raises(PermanentFailure, match="to the layers conv of this model, only to k_proj, q_proj"):
        vllm_engine.check_adaptable(layers, {"k_proj", "q_proj"})


def test_vllm_sampling_arguments_follow_the_spec() -> None:
    asked = vllm.sampling_arguments(SAMPLING, (1 << 63) + 3, [2, 7])
    assert asked["seed"] == 3 and asked["stop"] == ["!"] and asked["stop_token_ids"] == [2, 7]
    assert (asked["temperature"], asked["top_k"], asked["top_p"]) == (0.5, 4, 0.9)
    assert asked["ignore_eos"] and asked["include_stop_str_in_output"] and asked["n"] == 1


def test_tensorrt_llm_sampling_arguments_follow_the_spec() -> None:
    asked = tensorrt.sampling_arguments(SAMPLING, 3, [2, 7])
    assert (asked["seed"], asked["temperature"], asked["top_k"], asked["top_p"]) == (3, 0.5, 4, 0.9)
    assert (asked["end_id"], asked["stop_token_ids"]) == (-1, [2, 7])
    greedy = tensorrt.sampling_arguments(SamplingParameters(max_tokens=1, temperature=0), 3, [])
    assert (greedy["temperature"], greedy["top_k"], greedy["top_p"]) == (1.0, 1, None)
    arguments = tensorrt.engine_arguments(Path("/m"), TensorRTLLMEngineSpec(tensor_parallel=8), 512)
    assert arguments["load_format"] == "dummy" and arguments["tensor_parallel_size"] == 8
    assert tensorrt.cache_arguments(TensorRTLLMEngineSpec(cache_share=0.5))["free_gpu_memory_fraction"] == 0.5


def test_each_token_has_its_own_log_probability() -> None:
    logprobs = [{3: Logprob(-0.5), 9: Logprob(-0.1)}, {4: Logprob(-1.5)}]
    assert vllm_engine.to_external_sample(Completion([3, 4], logprobs)) == ExternalSample(
        [3, 4], [-0.5, -1.5]
    )
    assert tensorrt_engine.to_external_sample(Completion([3, 4], logprobs)) == ExternalSample(
        [3, 4], [-0.5, -1.5]
    )
    assert tensorrt_engine.to_external_sample(Completion([3, 4], [-0.5, -1.5])).logprobs == [-0.5, -1.5]


@pytest.mark.parametrize("results", [vllm_engine, tensorrt_engine])
@pytest.mark.parametrize("logprobs", [None, [{3: Logprob(-1)}], [{3: Logprob(-1)}, {5: Logprob(-1)}]])
def test_missing_log_probability_is_an_error(results: Any, logprobs: Any) -> None:
    with pytest.raises(ValueError, match="log-probabilit"):
        results.to_external_sample(Completion([3, 4], logprobs))


def decode(tokens: Any) -> str:
    return "".join(chr(96 + token) if token < 27 else "!" for token in tokens)


def ended(tokens: list[int], sampling: SamplingParameters) -> tuple[FinishReason, str]:
    zeros = [-1.0] * len(tokens)
    sample = to_generated_sample(
        request(sampling), 0, ExternalSample(tokens, zeros), zeros, frozenset({7}), 4, 0.0, decode
    )
    assert sample.versions == [4] * len(tokens)
    return sample.finish, sample.text


def test_finish_reason_follows_from_tokens() -> None:
    plain = SamplingParameters(max_tokens=3)
    assert ended([1, 2, 7], plain) == (FinishReason.STOP, "ab")
    assert ended([1, 2, 3], plain) == (FinishReason.LENGTH, "abc")
    stop = SamplingParameters(max_tokens=4, stop=("!",))
    assert ended([1, 2, 30], stop) == (FinishReason.STOP, "ab")
    assert ended([1, 2, 3, 4], stop) == (FinishReason.LENGTH, "abcd")


@pytest.mark.parametrize("behind", [(), (4,), (4, 7)])
def test_tokens_behind_a_stop_string_are_cut_off(behind: tuple[int, ...]) -> None:
    """vLLM heeds a stop string only behind the minTokens-th token, so it goes on where this one ends it."""
    sampling = SamplingParameters(max_tokens=6, min_tokens=3, stop=("!",))
    tokens = [1, 2, 30, *behind]
    logprobs = [-float(i) for i in range(len(tokens))]
    sample = to_generated_sample(
        request(sampling), 0, ExternalSample(tokens, logprobs), logprobs, frozenset({7}), 4, 0.0, decode
    )
    assert (sample.tokens, sample.finish, sample.text) == ([1, 2, 30], FinishReason.STOP, "ab")
    assert sample.behaviour_logprobs == sample.engine_logprobs == [0.0, -1.0, -2.0]
    assert sample.versions == [4, 4, 4]


def test_greedy_behaviour_log_probability_is_zero() -> None:
    sampling = SamplingParameters(max_tokens=2, temperature=0)
    sample = to_generated_sample(
        request(sampling), 0, ExternalSample([1, 2], [-1, -2]), [-1, -2], frozenset(), 0, 0.0, decode
    )
    assert (sample.behaviour_logprobs, sample.engine_logprobs) == ([0.0, 0.0], [-1, -2])


def test_unsupported_log_probabilities_are_refused() -> None:
    assert not is_truncated(SamplingParameters(max_tokens=1, temperature=0.7))
    assert not is_truncated(SamplingParameters(max_tokens=1, temperature=0, top_k=5))
    # The end tokens are forbidden at first, so the most probable token may not be the one that is taken.
    greedy = SamplingParameters(max_tokens=2, min_tokens=1, temperature=0)
    assert is_truncated(greedy)
    check_sampling_support(request(greedy))
    check_sampling_support(request(SamplingParameters(max_tokens=1, top_p=0.9)))
    with pytest.raises(RequestRefused, match=r"temperature is 0\.5"):
        check_sampling_support(request(SAMPLING))


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
async def test_missing_vllm_is_named() -> None:
    with pytest.raises(PermanentFailure, match="name one in KUBEALIGN_VLLM"):
        await VllmExternalEngine.create(Path("/m"), VllmEngineSpec(), 512)


@pytest.mark.skipif(find_spec("tensorrt_llm") is not None, reason="TensorRT-LLM is installed")
async def test_missing_tensorrt_llm_is_named() -> None:
    with pytest.raises(PermanentFailure, match="use an image that has it"):
        await TensorRTLLMExternalEngine.create(Path("/m"), TensorRTLLMEngineSpec(), 512)
