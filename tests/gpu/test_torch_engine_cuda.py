"""The torch engine on a GPU: a CPU's greedy tokens, and the rate of generation."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kubealign.spec.sections.engines import TorchEngineSpec as EngineSpec
from kubealign.spec.sections.precision import Precision
from kubealign_services.generation.contract import GeneratedSample, GenerationRequest, SamplingParameters
from kubealign_services.generation.torch_engine.engine import TorchRolloutEngine
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
