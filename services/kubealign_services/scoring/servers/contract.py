"""Contract of a reward of another server, and the samples that it scores."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kubealign_services.scoring.functions.batching import Outcome


@dataclass(frozen=True)
class ServerSample:
    """One response with its prompt and the columns of its row."""

    prompt: str
    response: str
    columns: dict[str, Any]


class ServerReward(Protocol):
    """A reward of another server. Its calls may overlap."""

    async def outcomes(self, samples: Sequence[ServerSample]) -> list[Outcome]:
        """Return one outcome per sample, in order."""
