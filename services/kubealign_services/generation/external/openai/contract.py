"""Contract of the kinds of inference servers."""

from pathlib import Path
from typing import Protocol

from kubealign_services.generation.contract import SamplingParameters
from kubealign_services.generation.external.contract import ExternalSample


class InferenceServerClient(Protocol):
    """Requests to one server in the notation of its kind.

    Its methods raise the errors of `ServerConnection.request`, and InvalidAnswer.
    """

    @property
    def scores_at_any_temperature(self) -> bool:
        """True as for `ExternalEngine`; known after `check`."""

    async def check(self, empty_file: Path) -> int:
        """Return the server's context in tokens, once it answers.

        Raises PermanentFailure where the server lacks an ability, with the option that gives it.

        Args:
            empty_file: Safetensors file without tensors in the folder of weight files.
        """

    async def generate(
        self, request_id: str, prompt: list[int], sampling: SamplingParameters, seed: int, ends: list[int]
    ) -> ExternalSample:
        """Generate one response, as `ExternalEngine.generate`."""

    async def score(self, tokens: list[int], temperature: float) -> list[float]:
        """Return the log-probability of each of at least two tokens after the first, as
        `ExternalEngine.score`.
        """

    async def load_weights(self, file: Path) -> None:
        """Load the weights of a safetensors file in place."""

    async def drop_prefixes(self) -> None:
        """Drop every cached prefix."""

    async def write_mark(self, mark: str) -> None:
        """Set the label of the server's weights, which it keeps in memory."""

    async def read_mark(self) -> str:
        """Return the label with a single attempt. Raises ServerOutage where the server is unreachable."""
