"""Generator that drives a step-wise engine: many groups at once, all engine calls on one thread."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from torch import Tensor

from kubealign.spec.sections.rollout import InFlightPolicy
from kubealign_services.generation.contract import (
    EngineLoad,
    EngineLost,
    GeneratedSample,
    GenerationRequest,
    RequestRefused,
    RolloutEngine,
)

Compute = Callable[..., Awaitable[Any]]


class SteppedGenerator:
    """Feeds an engine and hands out its samples as they finish. Generates only while `run` is running."""

    def __init__(
        self,
        engine: RolloutEngine,
        compute: Compute,
        observe: Callable[[EngineLoad], None] = lambda load: None,
    ) -> None:
        """Set up the generator.

        Args:
            observe: Called with the engine's load after each step.
        """
        self._engine = engine
        self._compute = compute
        self._observe = observe
        self._incoming: list[GenerationRequest] = []
        # Requests that were left early and that the engine still holds.
        self._aborting: dict[str, asyncio.Event] = {}
        self._queues: dict[str, asyncio.Queue[GeneratedSample | RequestRefused | EngineLost]] = {}
        # True if the weights may have changed during the current pause.
        self._weights_changed = False
        # Done when the weights are verified. None: they are verified.
        self._verification: asyncio.Future[None] | None = None
        self._has_work = asyncio.Event()
        # Set between two steps.
        self._between_steps = asyncio.Event()
        self._between_steps.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._unpaused = asyncio.Event()
        self._unpaused.set()
        # Held by the caller that has paused generation.
        self._pause_lock = asyncio.Lock()
        self.load = EngineLoad()

    @property
    def in_flight(self) -> int:
        """Number of groups that have not been handed out completely."""
        return len(self._queues)

    async def run(self) -> None:
        """Step the engine, forever, as long as it has work."""
        while True:
            await self._has_work.wait()
            # In a loop: the generator may be paused again before this task runs.
            while not self._unpaused.is_set():
                await self._unpaused.wait()
            self._idle.clear()
            self._between_steps.clear()
            incoming, self._incoming = self._incoming, []
            aborted = list(self._aborting)
            samples, refused = await self._compute(self._step_engine, incoming, aborted)
            self._between_steps.set()
            self._observe(self.load)
            if samples or _verification_error(self._verification):
                failure = await _wait_for_verification(self._verification)
                if failure:
                    self._fail_all(failure)
                    samples = []
            for request_id, refusal in refused.items():
                self._deliver(request_id, refusal)
            for sample in samples:
                self._deliver(sample.request_id, sample)
            for request_id in aborted:
                self._aborting.pop(request_id).set()
            if not (self.load.running or self.load.waiting):
                self._idle.set()
                if not self._incoming and not self._aborting:
                    self._has_work.clear()

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[GeneratedSample]:
        """Yield the group's samples, each as soon as it is finished.

        Leaving early frees the engine's resources.

        Raises:
            RequestRefused: The engine cannot run the request.
            EngineLost: A refit failed during generation.
        """
        while request.request_id in self._aborting:
            # The engine still holds an earlier request of this name.
            await self._aborting[request.request_id].wait()
        queue: asyncio.Queue[GeneratedSample | RequestRefused | EngineLost] = asyncio.Queue()
        if request.request_id in self._queues:
            raise RequestRefused(f"group {request.request_id} is being generated already")
        self._queues[request.request_id] = queue
        self._incoming.append(request)
        self._has_work.set()
        missing = len(request.seeds)
        try:
            while missing:
                sample = await queue.get()
                if isinstance(sample, RequestRefused | EngineLost):
                    missing = 0
                    raise sample
                missing -= 1
                yield sample
        finally:
            del self._queues[request.request_id]
            if any(waiting is request for waiting in self._incoming):
                self._incoming = [waiting for waiting in self._incoming if waiting is not request]
            elif missing:
                self._aborting.setdefault(request.request_id, asyncio.Event())
                self._has_work.set()

    async def wait_for_weight_loss(self) -> str:
        """Never return: this engine lives as long as the process."""
        await asyncio.Event().wait()
        raise AssertionError("this event is never set")

    @asynccontextmanager
    async def paused(self, in_flight: InFlightPolicy) -> AsyncIterator[None]:
        """Pause generation, as `Generator.paused`.

        If the block fails after it changed the weights, requests in flight end with EngineLost: no token
        is generated with unverified weights.
        """
        async with self._pause_lock:
            if in_flight is InFlightPolicy.DRAIN:
                await self._wait_until_drained()
            else:
                # Pause first: the gap between two steps is too short to be noticed.
                self._unpaused.clear()
            self._weights_changed = False
            try:
                await self._between_steps.wait()
                yield
            except BaseException as error:
                if self._weights_changed:
                    self._fail_all(f"a refit came to nothing under it: {error!r}")
                raise
            finally:
                self._unpaused.set()

    async def _wait_until_drained(self) -> None:
        """Pause once nothing runs. Until then new requests may begin."""
        while True:
            await self._idle.wait()
            self._unpaused.clear()
            if self._idle.is_set():
                return
            self._unpaused.set()

    async def refit(
        self,
        tensors: Iterable[tuple[str, Tensor]],
        version: int,
        in_flight: InFlightPolicy = InFlightPolicy.DRAIN,
    ) -> None:
        """Load new weights. Call it while paused. Raises ValueError for names or shapes that do not fit."""
        self._weights_changed, self._verification = True, None
        await self._compute(self._engine.refit, tensors, version, in_flight)

    async def adapt(
        self,
        tensors: Iterable[tuple[str, Tensor]],
        scale: float,
        version: int,
        in_flight: InFlightPolicy = InFlightPolicy.DRAIN,
    ) -> None:
        """Apply an adapter to the weights of the last `refit`.

        Call it while paused. Raises ValueError for names or shapes that do not fit.
        """
        self._weights_changed, self._verification = True, None
        await self._compute(self._engine.adapt, tensors, scale, version, in_flight)

    async def hold_output_until(self, proof: asyncio.Future[None]) -> None:
        """Hold finished samples back until the weights are verified, as `Generator.hold_output_until`.

        Returns at once.
        """
        self._verification = proof

    async def sequence_logprobs(self, tokens: list[int]) -> list[float]:
        """Return the log-probability of each token after the first, temperature 1. Call it while paused."""
        logprobs: list[float] = await self._compute(self._engine.sequence_logprobs, tokens)
        return logprobs

    async def continuation_logprobs(
        self, prompt: Sequence[int], continuations: Sequence[Sequence[int]]
    ) -> tuple[list[list[float]], int]:
        """Return the log-probabilities of each continuation's tokens at temperature 1, and the weight
        version.

        Runs concurrently with generation, but waits while paused. Raises RequestRefused, and EngineLost as
        `generate`.
        """
        while not self._unpaused.is_set():
            await self._unpaused.wait()
        verification = self._verification
        result: tuple[list[list[float]], int] = await self._compute(self._score, prompt, continuations)
        # A refit may have run before this call.
        failure = await _wait_for_verification(verification) or await _wait_for_verification(
            self._verification
        )
        if failure:
            raise EngineLost(failure)
        return result

    def _score(
        self, prompt: Sequence[int], continuations: Sequence[Sequence[int]]
    ) -> tuple[list[list[float]], int]:
        try:
            logprobs = [
                self._engine.sequence_logprobs([*prompt, *tokens])[len(prompt) - 1 :]
                for tokens in continuations
            ]
        except ValueError as error:
            raise RequestRefused(str(error)) from error
        return logprobs, self._engine.version

    def _step_engine(
        self, incoming: list[GenerationRequest], aborted: list[str]
    ) -> tuple[list[GeneratedSample], dict[str, RequestRefused]]:
        """Add and abort requests, then run one engine step."""
        refused: dict[str, RequestRefused] = {}
        for request in incoming:
            try:
                self._engine.add(request)
            except RequestRefused as error:
                refused[request.request_id] = error
        for request_id in aborted:
            self._engine.abort(request_id)
        samples = self._engine.step()
        self.load = self._engine.load()
        return samples, refused

    def _fail_all(self, cause: str) -> None:
        """End every group in flight with EngineLost. The engine forgets them before its next step."""
        for request_id, queue in self._queues.items():
            queue.put_nowait(EngineLost(cause))
            self._aborting.setdefault(request_id, asyncio.Event())
        self._incoming.clear()
        self._has_work.set()

    def _deliver(self, request_id: str, item: GeneratedSample | RequestRefused) -> None:
        """Deliver a sample or an error to the group's queue."""
        if request_id in self._queues:
            self._queues[request_id].put_nowait(item)


async def _wait_for_verification(proof: asyncio.Future[None] | None) -> str:
    """Wait until weights are verified. Return the error; empty: they are verified."""
    if proof is not None:
        await asyncio.wait({proof})
    return _verification_error(proof)


def _verification_error(proof: asyncio.Future[None] | None) -> str:
    """Return the verification error of weights; empty: none so far."""
    if proof is None or not proof.done() or proof.exception() is None:
        return ""
    return f"the weights that made it are not what was sent: {proof.exception()}"
