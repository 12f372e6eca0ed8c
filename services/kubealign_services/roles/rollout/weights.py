"""Weights of a rollout worker: the protocol, and fixed weights for a job that trains nothing."""

from typing import Protocol

from kubealign.v1 import batch_pb2, refit_pb2


class WorkerWeights(Protocol):
    """Weights that a rollout worker generates with, from refits or from a folder.

    quarantine_reason: error of the last refit; empty: none.
    """

    quarantine_reason: str

    @property
    def current(self) -> batch_pb2.WeightsId | None:
        """Verified weights of the engine; None before the first and during a change."""

    @property
    def last_ack(self) -> refit_pb2.RefitAcknowledgement | None:
        """Acknowledgement of the last refit."""

    @property
    def quarantined(self) -> bool:
        """True after a failed refit until one succeeds."""

    async def wait_for_version(self, fence: int, version: int, timeout: float) -> None:
        """Wait until the engine has these weights or later ones of the same fence. Raises StaleFence,
        Quarantined, TimeoutError.
        """

    async def wait_until_released(self) -> None:
        """Wait until the worker is not quarantined."""
