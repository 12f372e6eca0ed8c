"""What an adapter says of an engine of others; everything else is done once, in `OutsideGenerator`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kubealign_services.generation.contract import SamplingParameters


@dataclass(frozen=True)
class Drawn:
    """One response as the engine gives it. tokens: what ended it included. logprobs [len(tokens)]: natural
    log, of the distribution that was sampled from."""

    tokens: list[int]
    logprobs: list[float]


class EngineGone(RuntimeError):
    """The engine's processes have ended; nothing more will come from it."""


class OutsideEngine(Protocol):
    """One engine, used on one event loop. Cancelling a `draw` frees what it held."""

    async def draw(
        self, request_id: str, prompt: list[int], sampling: SamplingParameters, seed: int, ends: list[int]
    ) -> Drawn:
        """One response. Raises EngineGone."""

    async def score(self, request_id: str, tokens: list[int]) -> list[float]:
        """Log-probability of each token after the first, at temperature 1. Raises EngineGone."""

    async def load(self, file: Path) -> None:
        """Take the weights of a safetensors file by their Hugging Face names, in place; some of the model's,
        as a rule. Every process of the engine reads the file itself."""

    async def loaded(self) -> None:
        """All files of a version are in: forget every cached prefix."""

    async def release(self) -> None:
        """Give back the memory of weights and cache."""

    async def resume(self) -> None:
        """Take the memory again. Its contents are gone."""

    async def close(self) -> None:
        """End its processes."""
