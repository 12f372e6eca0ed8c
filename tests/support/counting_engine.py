"""A small exact external engine, and requests to a generator over it."""

import asyncio
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from kubealign_services.generation.contract import (
    GeneratedSample,
    GenerationRequest,
    SamplingParameters,
)
from kubealign_services.generation.expected_weights import ExpectedWeights
from kubealign_services.generation.external.contract import ExternalEngineDied, ExternalSample
from kubealign_services.generation.external.generator import ExternalGenerator, ModelInfo


class Counter:
    """An ExternalEngine that counts up from the prompt's last token and exposes its loaded weights."""

    def __init__(self) -> None:
        self.weights: dict[str, Tensor] = {}
        self.flushed = 0
        self.scores_at_any_temperature = True
        self.resting = False
        self.gone = False
        self.dies_at_flush = False
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.asked = asyncio.Event()
        self.released = asyncio.Event()
        self.cancelled: list[str] = []

    async def generate(
        self, request_id: str, prompt: list[int], sampling: SamplingParameters, seed: int, ends: list[int]
    ) -> ExternalSample:
        self.asked.set()
        try:
            await self.may_answer.wait()
        except asyncio.CancelledError:
            self.cancelled.append(request_id)
            raise
        if self.gone:
            raise ExternalEngineDied("it died")
        assert not self.resting
        tokens = [(prompt[-1] + i + 1) % 10 for i in range(sampling.max_tokens)]
        return ExternalSample(tokens, [-0.5 * seed] * len(tokens))

    async def score(self, request_id: str, tokens: list[int], temperature: float = 1.0) -> list[float]:
        return [-float(token) / temperature for token in tokens[1:]]

    async def load_weights(self, file: Path) -> None:
        if self.gone:
            raise ExternalEngineDied("it died")
        assert not self.resting
        self.weights |= load_file(file)

    async def finish_weight_update(self) -> None:
        if self.dies_at_flush:
            raise ExternalEngineDied("it died")
        self.flushed += 1

    async def release_memory(self) -> None:
        self.resting = True
        self.released.set()
        self.weights.clear()

    async def resume_memory(self) -> None:
        self.resting = False

    async def close(self) -> None: ...


MODEL = ModelInfo(
    20,
    10,
    frozenset({9}),
    lambda tokens: "".join(map(str, tokens)),
    ExpectedWeights(
        torch.nn.ModuleDict({"layer": torch.nn.Linear(3, 2, bias=False), "norm": torch.nn.RMSNorm(3)})
    ),
)


def request(name: str = "g", **sampling: float) -> GenerationRequest:
    parameters = SamplingParameters(max_tokens=3, **sampling)  # type: ignore[arg-type]
    return GenerationRequest(name, (1, 2), (1, 2), parameters)


async def collected(generator: ExternalGenerator, asked: GenerationRequest) -> list[GeneratedSample]:
    return sorted([sample async for sample in generator.generate(asked)], key=lambda sample: sample.sample)


BASE = {"layer.weight": torch.arange(6.0).view(2, 3), "norm.weight": torch.ones(3)}


class Running:
    """Runs a generator within a block."""

    def __init__(self, generator: ExternalGenerator) -> None:
        self._task = asyncio.create_task(generator.run())

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
