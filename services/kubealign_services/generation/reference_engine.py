"""A rollout engine that samples from the policy and from the frozen reference model."""

from collections.abc import Iterable
from dataclasses import replace

from torch import Tensor

from kubealign.spec.sections.rollout import InFlightPolicy
from kubealign_services.generation.contract import (
    REFERENCE_VERSION,
    EngineLoad,
    GeneratedSample,
    GenerationRequest,
    RolloutEngine,
)


class EngineWithReference:
    """A RolloutEngine of two: requests with `from_reference` go to the reference's, all others to the
    policy's.

    Weight updates, log-probabilities and `version` are the policy's; the weights of the reference never
    change, and its running sequences continue over every update. `load` covers both.
    """

    def __init__(self, policy: RolloutEngine, reference: RolloutEngine) -> None:
        """Combine the engines. Raises ValueError unless the reference's weights have REFERENCE_VERSION."""
        if reference.version != REFERENCE_VERSION:
            raise ValueError(
                f"the reference's weights have version {reference.version}; it must be {REFERENCE_VERSION}, "
                "which marks its samples"
            )
        self.version = policy.version
        self._policy = policy
        self._reference = reference

    def add(self, request: GenerationRequest) -> None:
        """Queue a request. Raises RequestRefused."""
        if request.from_reference:
            self._reference.add(replace(request, from_reference=False))
        else:
            self._policy.add(request)

    def abort(self, request_id: str) -> None:
        self._policy.abort(request_id)
        self._reference.abort(request_id)

    def step(self) -> list[GeneratedSample]:
        """Run one step of each engine; see `RolloutEngine.step`."""
        return self._policy.step() + self._reference.step()

    def load(self) -> EngineLoad:
        """Return the sums over both engines, and the larger share of the caches in use."""
        policy, reference = self._policy.load(), self._reference.load()
        sums = {name: value + getattr(reference, name) for name, value in vars(policy).items()}
        return EngineLoad(**sums | {"cache_used": max(policy.cache_used, reference.cache_used)})

    def refit(
        self,
        tensors: Iterable[tuple[str, Tensor]],
        version: int,
        in_flight: InFlightPolicy = InFlightPolicy.DRAIN,
    ) -> None:
        self._policy.refit(tensors, version, in_flight)
        self.version = self._policy.version

    def adapt(
        self,
        tensors: Iterable[tuple[str, Tensor]],
        scale: float,
        version: int,
        in_flight: InFlightPolicy = InFlightPolicy.DRAIN,
    ) -> None:
        self._policy.adapt(tensors, scale, version, in_flight)
        self.version = self._policy.version

    def sequence_logprobs(self, tokens: list[int]) -> list[float]:
        return self._policy.sequence_logprobs(tokens)
