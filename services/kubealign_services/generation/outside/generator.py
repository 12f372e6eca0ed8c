"""Implementation of `Generator` over an external engine."""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from torch import Tensor

from kubealign.spec.rollout import InFlight
from kubealign_services.generation.contract import (
    EngineLoad,
    EngineLost,
    GeneratedSample,
    GenerationRequest,
    RequestRefused,
)
from kubealign_services.generation.gate import Gate
from kubealign_services.generation.outside.base_weights import BaseWeights
from kubealign_services.generation.outside.contract import EngineGone, OutsideEngine
from kubealign_services.generation.outside.distributions import check_distribution, is_cut
from kubealign_services.generation.outside.samples import sample_of
from kubealign_services.generation.outside.weight_files import WeightFiles, batches
from kubealign_services.generation.torch_engine.requests import check_request

NO_WEIGHTS = -1
#: Seconds of idleness after which an engine with betweenPhases Freed releases its memory.
REST_SECONDS = 5.0


@dataclass(frozen=True)
class ModelFacts:
    """Model properties that the generator needs.

    ends: ids that end a response. decode: maps tokens to text, special tokens included.
    """

    context: int
    vocabulary: int
    ends: frozenset[int]
    decode: Callable[[Sequence[int]], str]


class OutsideGenerator:
    """A `Generator` over an ExternalEngine.

    files: files that transfer weights to the engine. adapted: the job trains an adapter, so the base
    weights are kept. freed: the engine releases its memory while it is idle; the last weights then stay in
    files.
    """

    def __init__(
        self,
        engine: OutsideEngine,
        model: ModelFacts,
        files: WeightFiles,
        max_sequences: int,
        adapted: bool = False,
        freed: bool = False,
        observe: Callable[[EngineLoad], None] = lambda load: None,
    ) -> None:
        self._engine = engine
        self._model = model
        self._files = files
        self._max_sequences = max_sequences
        self._base = BaseWeights() if adapted else None
        self._freed = freed
        self._observe = observe
        self._gate = Gate()
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waking = asyncio.Lock()
        self._asleep = False
        self._version = NO_WEIGHTS
        self._present: set[str] = set()
        self._scored = 0
        self.load = EngineLoad(free_sequences=max_sequences)

    @property
    def in_flight(self) -> int:
        return len(self._present)

    async def run(self) -> None:
        """Run until the engine has died, and raise its error. Releases the memory of an idle engine
        meanwhile.
        """
        resting = asyncio.create_task(self._rest())
        try:
            done, _ = await asyncio.wait({resting, self._gone}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            resting.cancel()
            await asyncio.gather(resting, return_exceptions=True)

    async def lost(self) -> str:
        """Wait for ever: an engine that dies ends `run`, and the worker with it."""
        await asyncio.Event().wait()
        raise AssertionError("the event is never set")

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[GeneratedSample]:
        check_request(request, self._model.context, self._model.vocabulary, self._present)
        check_distribution(request)
        self._present.add(request.request_id)
        try:
            async with self._gate.entered():
                await self._awake()
                tasks = [asyncio.create_task(self._sample(request, i)) for i in range(len(request.seeds))]
                self._count(len(tasks))
                missing = len(tasks)
                try:
                    for finished in asyncio.as_completed(tasks):
                        sample = await finished
                        missing -= 1
                        self.load.generated_tokens += len(sample.tokens)
                        self._count(-1)
                        yield sample
                finally:
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)
                    self._count(-missing)
        finally:
            self._present.discard(request.request_id)

    async def _sample(self, request: GenerationRequest, index: int) -> GeneratedSample:
        started = time.monotonic()
        prompt, sampling = list(request.prompt_tokens), request.sampling
        ends = self._model.ends | set(sampling.stop_token_ids)
        name = f"{request.request_id}/{index}"
        try:
            drawn = await self._engine.draw(name, prompt, sampling, request.seeds[index], sorted(ends))
            logprobs = drawn.logprobs
            if is_cut(sampling):
                scored = await self._engine.score(f"{name}/full", prompt + drawn.tokens)
                logprobs = scored[len(prompt) - 1 :]
        except EngineGone as error:
            raise self._lost(error) from error
        if not all(map(math.isfinite, [*drawn.logprobs, *logprobs])):
            raise ArithmeticError(f"the weights of version {self._version} give log-probabilities not finite")
        seconds = time.monotonic() - started
        decode, version = self._model.decode, self._version
        return sample_of(request, index, drawn, logprobs, frozenset(ends), version, seconds, decode)

    @asynccontextmanager
    async def quiet(self, in_flight: InFlight) -> AsyncIterator[None]:
        """Pause generation within the block. Raises ValueError for every mode but Drain."""
        _check_drain(in_flight)
        async with self._gate.closed(drained=True):
            yield

    async def refit(
        self, tensors: Iterable[tuple[str, Tensor]], version: int, in_flight: InFlight = InFlight.DRAIN
    ) -> None:
        """Load all weights. Raises ValueError for a name that comes twice, and for every mode but Drain.

        Other wrong weights are reported by the engine itself.
        """
        _check_drain(in_flight)
        await self._resumed()
        self._version = NO_WEIGHTS
        self._files.forget()
        named = tensors if self._base is None else self._base.noted(tensors)
        await self._take(named)
        self._version = version

    async def adapt(
        self,
        tensors: Iterable[tuple[str, Tensor]],
        scale: float,
        version: int,
        in_flight: InFlight = InFlight.DRAIN,
    ) -> None:
        """Merge an adapter into the base weights and load the result.

        Raises RuntimeError before the base weights were loaded, ValueError for an adapter that does not
        fit the base, and for every mode but Drain.
        """
        _check_drain(in_flight)
        if not self._base:
            raise RuntimeError("an adapter came before the weights that it is an adapter to")
        merged = await asyncio.to_thread(self._base.merged, tensors, scale)
        await self._awake()
        self._version = NO_WEIGHTS
        await self._take(merged.items())
        self._version = version

    async def proven_by(self, proof: asyncio.Future[None]) -> None:
        await asyncio.shield(proof)

    async def sequence_logprobs(self, tokens: list[int]) -> list[float]:
        await self._awake()
        self._scored += 1
        try:
            return await self._engine.score(f"sequence-{self._scored}", tokens)
        except EngineGone as error:
            raise self._lost(error) from error

    async def continuation_logprobs(
        self, prompt: Sequence[int], continuations: Sequence[Sequence[int]]
    ) -> tuple[list[list[float]], int]:
        longest = len(prompt) + max(map(len, continuations), default=0)
        if not prompt or longest > self._model.context:
            raise RequestRefused(f"{longest} tokens after a prompt; the context has {self._model.context}")
        async with self._gate.entered():
            full = [await self.sequence_logprobs([*prompt, *tokens]) for tokens in continuations]
            return [logprobs[len(prompt) - 1 :] for logprobs in full], self._version

    async def _take(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Transfer the tensors file by file. Files are kept where the engine may release its weights."""
        for batch in batches(tensors):
            path = await asyncio.to_thread(self._files.write, batch)
            try:
                await self._engine.load(path)
            finally:
                if self._freed:
                    self._files.kept.append(path)
                else:
                    path.unlink(missing_ok=True)
        await self._engine.loaded()

    async def _rest(self) -> None:
        """Release the engine's memory whenever it has been idle, where the spec asks for that."""
        while self._freed:
            await self._gate.idle.wait()
            try:
                await asyncio.wait_for(self._gate.busy.wait(), REST_SECONDS)
            except TimeoutError:
                async with self._waking:
                    if self._version != NO_WEIGHTS and not self._asleep and self._gate.idle.is_set():
                        await self._engine.release()
                        self._asleep = True
                await self._gate.busy.wait()
        await asyncio.Event().wait()

    async def _awake(self) -> None:
        """Restore the memory and the last weights of an engine that has released its memory."""
        async with self._waking:
            if self._version == NO_WEIGHTS:
                raise RuntimeError("the engine has no usable weights: refit it first")
            if self._asleep:
                await self._engine.resume()
                for path in self._files.kept:
                    await self._engine.load(path)
                await self._engine.loaded()
                self._asleep = False

    async def _resumed(self) -> None:
        async with self._waking:
            if self._asleep:
                await self._engine.resume()
                self._asleep = False

    def _count(self, samples: int) -> None:
        self.load.running = min(self.load.running + self.load.waiting + samples, self._max_sequences)
        self.load.free_sequences = self._max_sequences - self.load.running
        self._observe(self.load)

    def _lost(self, error: EngineGone) -> EngineLost:
        if not self._gone.done():
            self._gone.set_exception(error)
        return EngineLost(str(error))


def _check_drain(in_flight: InFlight) -> None:
    """Raise ValueError for every mode but Drain: external engines return whole responses without the weight
    version of each token.
    """
    if in_flight is not InFlight.DRAIN:
        raise ValueError(f"rollout.refit.inFlight is {in_flight}; this engine can only {InFlight.DRAIN}")
