"""Generation without a transport: many groups at once through one engine, on the one thread that may call
it."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from torch import Tensor

from kubealign.spec.rollout import InFlight
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
    """Feeds an engine and hands out its samples as they finish. `run` must be running for anything to
    come."""

    def __init__(
        self,
        engine: RolloutEngine,
        compute: Compute,
        observe: Callable[[EngineLoad], None] = lambda load: None,
    ) -> None:
        """observe: told the engine's load after each step."""
        self._engine = engine
        self._compute = compute
        self._observe = observe
        self._incoming: list[GenerationRequest] = []
        # Left early, and not yet forgotten by the engine.
        self._leaving: dict[str, asyncio.Event] = {}
        self._queues: dict[str, asyncio.Queue[GeneratedSample | RequestRefused | EngineLost]] = {}
        # Whether the weights may be others than before the quiet that is held.
        self._touched = False
        # Of the weights: done when they are known to be what was sent. None: they are.
        self._proof: asyncio.Future[None] | None = None
        self._work = asyncio.Event()
        # Set between two steps.
        self._still = asyncio.Event()
        self._still.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._open = asyncio.Event()
        self._open.set()
        # By whoever has it quiet.
        self._held = asyncio.Lock()
        self.load = EngineLoad()

    @property
    def in_flight(self) -> int:
        """Groups that have not been handed out whole."""
        return len(self._queues)

    async def run(self) -> None:
        """Step the engine for ever, as long as it has work."""
        while True:
            await self._work.wait()
            # In a loop: by the time that this goes on, it may be shut again.
            while not self._open.is_set():
                await self._open.wait()
            self._idle.clear()
            self._still.clear()
            incoming, self._incoming = self._incoming, []
            aborted = list(self._leaving)
            samples, refused = await self._compute(self._advance, incoming, aborted)
            self._still.set()
            self._observe(self.load)
            if samples or _disproof(self._proof):
                lost = await _doubt(self._proof)
                if lost:
                    self._drop(lost)
                    samples = []
            for request_id, refusal in refused.items():
                self._hand_out(request_id, refusal)
            for sample in samples:
                self._hand_out(sample.request_id, sample)
            for request_id in aborted:
                self._leaving.pop(request_id).set()
            if not (self.load.running or self.load.waiting):
                self._idle.set()
                if not self._incoming and not self._leaving:
                    self._work.clear()

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[GeneratedSample]:
        """The group's samples, each as soon as it is finished. Raises RequestRefused; EngineLost where a
        refit came to nothing under it. Leaving early frees what it held."""
        while request.request_id in self._leaving:
            # What the engine still has under this name is another request's.
            await self._leaving[request.request_id].wait()
        queue: asyncio.Queue[GeneratedSample | RequestRefused | EngineLost] = asyncio.Queue()
        if request.request_id in self._queues:
            raise RequestRefused(f"group {request.request_id} is being generated already")
        self._queues[request.request_id] = queue
        self._incoming.append(request)
        self._work.set()
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
                self._leaving.setdefault(request.request_id, asyncio.Event())
                self._work.set()

    async def lost(self) -> str:
        """Never: the engine lives as long as the process."""
        await asyncio.Event().wait()
        raise AssertionError("nothing sets it")

    @asynccontextmanager
    async def quiet(self, in_flight: InFlight) -> AsyncIterator[None]:
        """As `Generator.quiet`. Where the block fails after the weights were touched, what was in flight
        ends with EngineLost: no token of it is made with weights that nobody has proven."""
        async with self._held:
            if in_flight is InFlight.DRAIN:
                await self._drained()
            else:
                # Shut first: between two steps there is no time to notice that one has ended.
                self._open.clear()
            self._touched = False
            try:
                await self._still.wait()
                yield
            except BaseException as error:
                if self._touched:
                    self._drop(f"a refit came to nothing under it: {error!r}")
                raise
            finally:
                self._open.set()

    async def _drained(self) -> None:
        """Shut it when nothing runs. Until then others may begin."""
        while True:
            await self._idle.wait()
            self._open.clear()
            if self._idle.is_set():
                return
            self._open.set()

    async def refit(
        self, tensors: Iterable[tuple[str, Tensor]], version: int, in_flight: InFlight = InFlight.DRAIN
    ) -> None:
        """Take new weights. Call it within `quiet`. Raises ValueError for names or shapes that do not fit."""
        self._touched, self._proof = True, None
        await self._compute(self._engine.refit, tensors, version, in_flight)

    async def adapt(
        self,
        tensors: Iterable[tuple[str, Tensor]],
        scale: float,
        version: int,
        in_flight: InFlight = InFlight.DRAIN,
    ) -> None:
        """Take an adapter to the weights of the last `refit`. Call it within `quiet`. Raises ValueError for
        names or shapes that do not fit."""
        self._touched, self._proof = True, None
        await self._compute(self._engine.adapt, tensors, scale, version, in_flight)

    async def proven_by(self, proof: asyncio.Future[None]) -> None:
        """As `Generator.proven_by`: returns at once, and keeps back."""
        self._proof = proof

    async def sequence_logprobs(self, tokens: list[int]) -> list[float]:
        """Log-probability of each token after the first, at temperature 1. Call it within `quiet`."""
        logprobs: list[float] = await self._compute(self._engine.sequence_logprobs, tokens)
        return logprobs

    async def continuation_logprobs(
        self, prompt: Sequence[int], continuations: Sequence[Sequence[int]]
    ) -> tuple[list[list[float]], int]:
        """Log-probability of each continuation's tokens after the prompt, at temperature 1, and the version
        of the weights. Beside what runs, but not while `quiet` is held. Raises RequestRefused; EngineLost as
        `generate`."""
        while not self._open.is_set():
            await self._open.wait()
        before = self._proof
        found: tuple[list[list[float]], int] = await self._compute(self._score, prompt, continuations)
        # A refit may have come before it had its turn.
        lost = await _doubt(before) or await _doubt(self._proof)
        if lost:
            raise EngineLost(lost)
        return found

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

    def _advance(
        self, incoming: list[GenerationRequest], aborted: list[str]
    ) -> tuple[list[GeneratedSample], dict[str, RequestRefused]]:
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

    def _drop(self, cause: str) -> None:
        """End every group in flight. The engine forgets them before its next step."""
        for request_id, queue in self._queues.items():
            queue.put_nowait(EngineLost(cause))
            self._leaving.setdefault(request_id, asyncio.Event())
        self._incoming.clear()
        self._work.set()

    def _hand_out(self, request_id: str, item: GeneratedSample | RequestRefused) -> None:
        if request_id in self._queues:
            self._queues[request_id].put_nowait(item)


async def _doubt(proof: asyncio.Future[None] | None) -> str:
    """Wait until it is known whether weights are what was sent. Why not; empty: they are."""
    if proof is not None:
        await asyncio.wait({proof})
    return _disproof(proof)


def _disproof(proof: asyncio.Future[None] | None) -> str:
    """Why weights are not what was sent; empty: that is not known."""
    if proof is None or not proof.done() or proof.exception() is None:
        return ""
    return f"the weights that made it are not what was sent: {proof.exception()}"
