"""The weights that a rollout worker generates with, as the worker asks about them."""

from typing import Protocol

from kubealign.v1 import batch_pb2, refit_pb2


class WorkerWeights(Protocol):
    """Those of a job that trains come by refit, those of one that does not lie in a folder.

    cause: why the last refit failed; empty: it did not.
    """

    cause: str

    @property
    def current(self) -> batch_pb2.WeightsId | None:
        """What the engine holds, verified; None while there is nothing, or while it changes."""

    @property
    def last(self) -> refit_pb2.RefitAcknowledgement | None:
        """How the last refit went."""

    @property
    def quarantined(self) -> bool:
        """After a failed refit, until one succeeds."""

    async def wait_for(self, fence: int, version: int, timeout: float) -> None:
        """Return once the engine holds these weights or later ones of the same fence. Raises StaleFence,
        Quarantined, TimeoutError."""

    async def released(self) -> None:
        """Return once it is not quarantined."""
