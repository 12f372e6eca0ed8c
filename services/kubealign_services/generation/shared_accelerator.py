"""A rollout engine that shares its accelerator: it holds the accelerator lock from its first token until it
is idle.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from torch import Tensor

from kubealign.spec.sections.rollout import InFlightPolicy
from kubealign_services.generation.contract import (
    EngineLoad,
    GeneratedSample,
    GenerationRequest,
    RolloutEngine,
)
from kubealign_services.runtime.offload.accelerator_lock import AcceleratorLock
from kubealign_services.runtime.offload.contract import Offloadable

#: Name of the engine as a tenant of the accelerator lock.
GENERATION_TENANT = "generation"


class EngineMemory(Offloadable, Protocol):
    """Accelerator memory of an engine."""

    def reload_empty(self) -> None:
        """Allocate the memory again with undefined contents: all weights are about to be loaded."""


class EngineTenant:
    """The engine as a tenant of the accelerator lock.

    Has nothing on the accelerator until `memory` is set.
    """

    def __init__(self) -> None:
        self.memory: EngineMemory | None = None
        self._replaces_weights = False

    def offload(self) -> None:
        if self.memory is not None:
            self.memory.offload()

    def reload(self) -> None:
        if self.memory is None:
            return
        if self._replaces_weights:
            self.memory.reload_empty()
        else:
            self.memory.reload()

    @contextmanager
    def replacing_weights(self) -> Iterator[None]:
        """Within the block, reload the memory without the old weights, because all weights are about to be
        replaced.
        """
        self._replaces_weights = True
        try:
            yield
        finally:
            self._replaces_weights = False


class SharedAcceleratorEngine:
    """A RolloutEngine that acquires the accelerator lock before it computes.

    Like the wrapped engine it is called by one thread; waiting for the lock blocks that thread, which has
    no other work.
    """

    def __init__(self, engine: RolloutEngine, lease: AcceleratorLock, tenant: EngineTenant) -> None:
        self.version = engine.version
        self._engine = engine
        self._lock = lease
        self._tenant = tenant
        self._has_lock = False

    def add(self, request: GenerationRequest) -> None:
        self._engine.add(request)

    def abort(self, request_id: str) -> None:
        self._engine.abort(request_id)
        self._release_if_idle()

    def step(self) -> list[GeneratedSample]:
        """Run one step; see `RolloutEngine.step`. Raises LeaseTimeout."""
        if self._is_idle():
            return []
        if not self._has_lock:
            self._lock.acquire(GENERATION_TENANT, "samples")
            self._has_lock = True
        try:
            return self._engine.step()
        finally:
            self._release_if_idle()

    def load(self) -> EngineLoad:
        return self._engine.load()

    def refit(
        self,
        tensors: Iterable[tuple[str, Tensor]],
        version: int,
        in_flight: InFlightPolicy = InFlightPolicy.DRAIN,
    ) -> None:
        """Load new weights; see `RolloutEngine.refit`. Raises LeaseTimeout."""
        with self._tenant.replacing_weights(), self._hold_lock("a refit"):
            self._engine.refit(tensors, version, in_flight)
        self.version = self._engine.version

    def adapt(
        self,
        tensors: Iterable[tuple[str, Tensor]],
        scale: float,
        version: int,
        in_flight: InFlightPolicy = InFlightPolicy.DRAIN,
    ) -> None:
        """Load a new adapter; see `RolloutEngine.adapt`. Raises LeaseTimeout."""
        with self._hold_lock("a refit of the adapter"):
            self._engine.adapt(tensors, scale, version, in_flight)
        self.version = self._engine.version

    def sequence_logprobs(self, tokens: list[int]) -> list[float]:
        """Return log-probabilities; see `RolloutEngine.sequence_logprobs`. Raises LeaseTimeout."""
        with self._hold_lock("log-probabilities"):
            return self._engine.sequence_logprobs(tokens)

    @contextmanager
    def _hold_lock(self, purpose: str) -> Iterator[None]:
        if self._has_lock:
            yield
            return
        with self._lock.hold(GENERATION_TENANT, purpose):
            yield

    def _is_idle(self) -> bool:
        load = self._engine.load()
        return not (load.running or load.waiting)

    def _release_if_idle(self) -> None:
        if self._has_lock and self._is_idle():
            self._has_lock = False
            self._lock.release(GENERATION_TENANT)
