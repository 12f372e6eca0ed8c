"""vLLM and TensorRT-LLM behind the engine contract, if installed: greedy tokens and log-probabilities equal
those of the torch engine, a refit in place takes effect, weights that do not fit are refused; the rate of
vLLM beside that of the torch engine.
"""

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from kubealign.spec.sections.engines import IdleMemoryPolicy, TensorRTLLMEngineSpec, VllmEngineSpec
from kubealign.spec.sections.engines import TorchEngineSpec as EngineSpec
from kubealign.spec.sections.precision import Precision
from kubealign.spec.sections.rollout import InFlightPolicy
from kubealign_services.generation.contract import GenerationRequest, SamplingParameters
from kubealign_services.generation.external.factory import open_external_engine
from kubealign_services.generation.torch_engine.engine import TorchRolloutEngine
from kubealign_services.roles.rollout.weights import read_folder_weights

pytestmark = pytest.mark.timeout(240)

SPECS = [
    pytest.param(
        VllmEngineSpec(
            precision=Precision.FLOAT32,
            memory_share=0.3,
            between_phases=IdleMemoryPolicy.FREED,
            max_sequences=16,
        ),
        marks=pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
        id="vllm",
    ),
    pytest.param(
        TensorRTLLMEngineSpec(precision=Precision.FLOAT32, cache_share=0.3, max_sequences=16),
        marks=pytest.mark.skipif(find_spec("tensorrt_llm") is None, reason="TensorRT-LLM is not installed"),
        id="tensorrt-llm",
    ),
]


@pytest.mark.parametrize("spec", SPECS)
async def test_external_engine_matches_the_torch_engine(
    folder: Path, tmp_path: Path, figure: Callable[[str], None], spec: VllmEngineSpec | TensorRTLLMEngineSpec
) -> None:
    own = TorchRolloutEngine.create(folder, EngineSpec(max_sequences=4))
    own.refit(read_folder_weights(folder), 1)
    tokens = list(range(5, 25))
    greedy = GenerationRequest("g", tuple(tokens), (1, 2), SamplingParameters(16, 16, temperature=0.0))
    own.add(greedy)
    expected = []
    while len(expected) < 2:
        expected += own.step()
    async with open_external_engine(spec, folder, tmp_path, None, lambda load: None) as generator:
        run = asyncio.create_task(generator.run())
        try:
            async with generator.paused(InFlightPolicy.DRAIN):
                await generator.refit(read_folder_weights(folder), 1)
            assert await generator.sequence_logprobs(tokens) == pytest.approx(
                own.sequence_logprobs(tokens), abs=2e-2
            )
            actual = [sample async for sample in generator.generate(greedy)]
            assert [sample.tokens for sample in actual] == [sample.tokens for sample in expected]
            async with generator.paused(InFlightPolicy.DRAIN):
                zeros = ((name, torch.zeros_like(weight)) for name, weight in read_folder_weights(folder))
                await generator.refit(zeros, 2)
            flat = await generator.sequence_logprobs(tokens)
            figure(f"after a refit with zeros every log-probability is {flat[0]:.4f}")
            assert flat == pytest.approx([-torch.tensor(8192.0).log().item()] * len(flat), abs=1e-3)
            _, *others = read_folder_weights(folder)
            async with generator.paused(InFlightPolicy.DRAIN):
                with pytest.raises(ValueError, match="did not come"):
                    await generator.refit(others, 3)
        finally:
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)


@dataclass(frozen=True)
class Workload:
    """Requests with `samples` responses each; each request has a prompt and an exact number of tokens."""

    name: str
    requests: tuple[tuple[tuple[int, ...], int], ...]
    samples: int = 1

    @property
    def tokens(self) -> int:
        return sum(tokens for _, tokens in self.requests) * self.samples

    def generation_requests(self, run: int) -> list[GenerationRequest]:
        return [
            GenerationRequest(
                f"{self.name}-{run}-{index}",
                prompt,
                tuple(range(index * self.samples, (index + 1) * self.samples)),
                SamplingParameters(tokens, tokens, temperature=1.0),
            )
            for index, (prompt, tokens) in enumerate(self.requests)
        ]


def workloads() -> list[Workload]:
    source = random.Random(0)
    even = tuple((tuple(range(3 + index, 20 + index)), 256) for index in range(128))
    tailed = tuple(
        (
            tuple(source.randrange(3, 8000) for _ in range(source.randint(20, 120))),
            min(600, int(16 * source.paretovariate(0.7))),
        )
        for _ in range(256)
    )
    return [Workload("even", even), Workload("long-tailed", tailed), Workload("groups", even[:16], samples=8)]


@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
async def test_tokens_per_second_beside_the_torch_engine(
    folder: Path, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    """Each workload runs twice and the second run counts: the first compiles and records CUDA graphs."""
    own = TorchRolloutEngine.create(folder, EngineSpec(precision=Precision.BFLOAT16, max_sequences=128))
    own.refit(read_folder_weights(folder), 1)
    own_rates: dict[str, float] = {}
    for work in workloads():
        for run in range(2):
            started = time.monotonic()
            for request in work.generation_requests(run):
                own.add(request)
            missing = len(work.requests) * work.samples
            while missing:
                missing -= len(own.step())
            own_rates[work.name] = work.tokens / (time.monotonic() - started)
    del own
    torch.cuda.empty_cache()
    spec = VllmEngineSpec(precision=Precision.BFLOAT16, memory_share=0.3, max_sequences=128)
    async with open_external_engine(spec, folder, tmp_path, None, lambda load: None) as generator:
        async with generator.paused(InFlightPolicy.DRAIN):
            await generator.refit(read_folder_weights(folder), 1)

        async def drain(request: GenerationRequest) -> int:
            return sum([len(sample.tokens) async for sample in generator.generate(request)])

        for work in workloads():
            for run in range(2):
                started = time.monotonic()
                counts = await asyncio.gather(*map(drain, work.generation_requests(run)))
                rate = work.tokens / (time.monotonic() - started)
                assert sum(counts) == work.tokens
            figure(
                f"{work.name}: vLLM {rate:.0f} tokens a second, torch engine {own_rates[work.name]:.0f}, "
                f"{own_rates[work.name] / rate:.1f} times"
            )
