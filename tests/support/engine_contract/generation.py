"""Requests of the contract tests and the samples of an engine or of the torch engine in this process."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kubealign.spec.sections import engines as engine_spec
from kubealign.spec.sections.rollout import InFlightPolicy
from kubealign_services.generation.contract import (
    GeneratedSample,
    GenerationRequest,
    Generator,
    SamplingParameters,
)
from kubealign_services.generation.torch_engine.engine import TorchRolloutEngine
from support.engine_contract.tiny_model import weights

#: Samples that a subject's engine runs at once.
CAPACITY = 8
SECONDS = 60

Samples = dict[tuple[str, int], GeneratedSample]


@dataclass
class Subject:
    """The engine under test.

    generator: over an engine for the model of `folder`, with CAPACITY sequences, float32; its `run` is
    running.
    """

    generator: Generator
    folder: Path


def group(name: str, *seeds: int, prompt: tuple[int, ...] = (1, 2, 3), **sampling: Any) -> GenerationRequest:
    return GenerationRequest(name, prompt, seeds, SamplingParameters(**{"max_tokens": 12, **sampling}))


GREEDY = group("greedy", 1, temperature=0.0)
#: Not for engines that score at temperature 1 only.
NARROW_AND_COLD = group("narrow and cold", 3, 4, temperature=0.6, top_k=8, top_p=0.8)
MANY_KINDS = [
    group("sampled", 11, 12, 2**64 - 1),
    GREEDY,
    group("cold", 1, 2, temperature=0.7, prompt=(9, 8, 7, 6)),
    group("narrow", 1, 2, top_k=4, top_p=0.6),
    NARROW_AND_COLD,
    group("stops at text", *range(8), stop=("a", "0", "e", "\N{LATIN SMALL LETTER E WITH ACUTE}")),
    group("stops at ids", *range(8), stop_token_ids=tuple(range(0, 256, 4))),
    group("not before", *range(4), min_tokens=6, stop_token_ids=tuple(range(0, 256, 2))),
    group("one", 5, max_tokens=1),
]


def torch_engine(folder: Path, version: int) -> TorchRolloutEngine:
    """Return a torch engine in this process."""
    engine = TorchRolloutEngine.create(folder, engine_spec.TorchEngineSpec(max_sequences=CAPACITY))
    engine.refit(weights(version).items(), version)
    return engine


def stepped(engine: TorchRolloutEngine, *requests: GenerationRequest) -> Samples:
    """Return the engine's samples for the requests."""
    for request in requests:
        engine.add(request)
    samples: Samples = {}
    while engine.load().running or engine.load().waiting:
        for sample in engine.step():
            samples[sample.request_id, sample.sample] = sample
    return samples


async def generated(generator: Generator, *requests: GenerationRequest) -> Samples:
    """Return the generator's samples for concurrent requests."""

    async def one(request: GenerationRequest) -> list[GeneratedSample]:
        return [sample async for sample in generator.generate(request)]

    async with asyncio.timeout(SECONDS):
        groups = await asyncio.gather(*map(one, requests))
    return {(sample.request_id, sample.sample): sample for group in groups for sample in group}


async def refitted(subject: Subject, version: int) -> None:
    async with asyncio.timeout(SECONDS), subject.generator.paused(InFlightPolicy.DRAIN):
        await subject.generator.refit(weights(version).items(), version)


def check_same(got: Samples, expected: Samples) -> None:
    """Compare token by token; log-probabilities within float32 rounding for other batches."""
    assert got.keys() == expected.keys()
    for name, sample in got.items():
        true = expected[name]
        assert (sample.tokens, sample.finish, sample.text) == (true.tokens, true.finish, true.text)
        assert sample.versions == true.versions
        assert sample.behaviour_logprobs == pytest.approx(true.behaviour_logprobs, abs=1e-4)
        assert sample.engine_logprobs == pytest.approx(true.engine_logprobs, abs=1e-4)
