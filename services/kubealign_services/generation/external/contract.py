"""Contract of an external engine's adapter.

`ExternalGenerator` implements everything else once for all external engines.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kubealign_services.generation.contract import SamplingParameters


@dataclass(frozen=True)
class ExternalSample:
    """One response as returned by the engine.

    tokens: includes the token that ended the response. logprobs [len(tokens)]: natural logarithm, under
    the distribution that was sampled from.
    """

    tokens: list[int]
    logprobs: list[float]


class ExternalEngineDied(RuntimeError):
    """The engine's processes have ended; it produces no more output."""


class ExternalEngine(Protocol):
    """One external engine, used on one event loop. Cancelling a `generate` call frees its resources.

    Every method but `close` raises ExternalEngineDied where the engine's processes have ended.
    """

    @property
    def scores_at_any_temperature(self) -> bool:
        """True where `score` computes at temperatures other than 1 too."""

    async def generate(
        self, request_id: str, prompt: list[int], sampling: SamplingParameters, seed: int, ends: list[int]
    ) -> ExternalSample:
        """Generate one response."""

    async def score(self, request_id: str, tokens: list[int], temperature: float = 1.0) -> list[float]:
        """Return the log-probability of each token after the first under the full softmax at a temperature
        above 0.
        """

    async def load_weights(self, file: Path) -> None:
        """Load the weights of a safetensors file by their Hugging Face names, in place; usually only some of
        the model's weights.

        Every process of the engine reads the file itself.
        """

    async def finish_weight_update(self) -> None:
        """Finish a weight update after all files of a version were loaded: drop every cached prefix."""

    async def release_memory(self) -> None:
        """Release the memory of weights and cache."""

    async def resume_memory(self) -> None:
        """Allocate the memory again. Its contents are lost."""

    async def close(self) -> None:
        """End the engine's processes."""


class AdapterEngine(ExternalEngine, Protocol):
    """An ExternalEngine that applies an adapter to its base weights itself.

    `release_memory` drops the adapter too.
    """

    async def load_adapter(self, folder: Path) -> None:
        """Load the adapter of a PEFT folder in place of the one before, which no request may be using.

        Every later request uses it: no output and no cached prefix depends on an earlier adapter. The folder
        is not read after this call.
        """

    async def drop_adapter(self) -> None:
        """Use the base weights alone in every later request."""
