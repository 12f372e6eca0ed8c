"""The torch engine on a GPU: a CPU's greedy tokens, log-probabilities of whole sequences, the rate of
generation, and its attention kernel.
"""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from kubealign.spec.sections.engines import TorchEngineSpec as EngineSpec
from kubealign.spec.sections.precision import Precision
from kubealign_services.generation.contract import GeneratedSample, GenerationRequest, SamplingParameters
from kubealign_services.generation.torch_engine.attention.attention_plan import LayerAttention
from kubealign_services.generation.torch_engine.attention.gpu_plan import gpu_attention_works
from kubealign_services.generation.torch_engine.engine import TorchRolloutEngine
from kubealign_services.generation.torch_engine.kv_cache.paged_kv_cache import LayerKVShape
from kubealign_services.roles.rollout.weights import read_folder_weights

pytestmark = pytest.mark.timeout(120)


def generated(folder: Path, spec: EngineSpec, groups: int, tokens: int) -> list[GeneratedSample]:
    engine = TorchRolloutEngine.create(folder, spec)
    engine.refit(read_folder_weights(folder), 0)
    greedy = SamplingParameters(tokens, tokens, temperature=0.0)
    for index in range(groups):
        prompt = tuple(range(3 + index, 20 + index))
        engine.add(GenerationRequest(str(index), prompt, (1,), greedy))
    samples: list[GeneratedSample] = []
    while len(samples) < groups:
        samples += engine.step()
    return sorted(samples, key=lambda sample: int(sample.request_id))


def test_greedy_tokens_equal_cpu_tokens(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    spec = EngineSpec(max_sequences=8)
    on_gpu = generated(folder, spec, 8, 24)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    on_cpu = generated(folder, spec, 8, 24)
    assert [sample.tokens for sample in on_gpu] == [sample.tokens for sample in on_cpu]
    for a, b in zip(on_gpu, on_cpu, strict=True):
        assert a.engine_logprobs == pytest.approx(b.engine_logprobs, abs=1e-3)


#: Largest difference of a log-probability: in half precision the same token is computed in other batches.
LOGPROB_GAPS = {Precision.FLOAT32: 1e-3, Precision.BFLOAT16: 0.1, Precision.FLOAT16: 0.02}


@pytest.mark.parametrize("precision", list(Precision))
def test_sampled_logprobs_equal_those_of_whole_sequences(
    folder: Path, figure: Callable[[str], None], caplog: pytest.LogCaptureFixture, precision: Precision
) -> None:
    # Memory that the engine allocates afterwards holds NaN.
    remains = torch.full((1 << 29,), torch.nan, device="cuda")
    del remains
    engine = TorchRolloutEngine.create(folder, EngineSpec(precision=precision, max_sequences=64))
    assert not caplog.records, "the attention kernel does not run on this GPU"
    engine.refit(read_folder_weights(folder), 0)
    sampling = SamplingParameters(120, 120, temperature=1.0)
    prompts = {str(i): tuple(range(3 + i, 20 + 7 * i)) for i in range(16)}
    for name, prompt in prompts.items():
        engine.add(GenerationRequest(name, prompt, (1, 2, 3), sampling))
    samples: list[GeneratedSample] = []
    while len(samples) < 3 * len(prompts):
        samples += engine.step()
    gap = 0.0
    for sample in samples:
        prompt = prompts[sample.request_id]
        whole_sequence = engine.sequence_logprobs([*prompt, *sample.tokens])[len(prompt) - 1 :]
        gap = max(gap, *map(abs, np.subtract(sample.engine_logprobs, whole_sequence)))
    figure(f"largest difference of a log-probability {gap:.2e}")
    assert gap < LOGPROB_GAPS[precision]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [64, 80, 128, 256])
@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("softcap", [None, 50.0])
def test_attention_kernel_equals_gathering(
    dtype: torch.dtype, width: int, window: int | None, softcap: float | None
) -> None:
    use = LayerAttention(8, LayerKVShape(2, width, width), window, softcap)
    assert gpu_attention_works([use], dtype, torch.device("cuda"))


@pytest.mark.parametrize("precision", list(Precision))
def test_tokens_per_second(folder: Path, figure: Callable[[str], None], precision: Precision) -> None:
    spec = EngineSpec(precision=precision, max_sequences=128)
    generated(folder, spec, 8, 8)
    torch.cuda.reset_peak_memory_stats()
    started = time.monotonic()
    samples = generated(folder, spec, 128, 256)
    rate = sum(len(sample.tokens) for sample in samples) / (time.monotonic() - started)
    figure(f"{precision}: {rate:.0f} tokens a second, {torch.cuda.max_memory_allocated() >> 20} MiB")
    assert rate > 0
