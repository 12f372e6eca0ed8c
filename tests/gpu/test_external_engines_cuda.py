"""vLLM and TensorRT-LLM behind the engine contract, if installed: greedy tokens and log-probabilities equal
those of the torch engine, and a refit in place takes effect.
"""

import asyncio
from collections.abc import Callable
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
    async with open_external_engine(spec, folder, tmp_path, False, lambda load: None) as generator:
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
        finally:
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)
