"""Implementation of `Generator` over an external engine."""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import chain

from torch import Tensor

from kubealign.spec.sections.rollout import InFlightPolicy
from kubealign_services.generation.admission_gate import AdmissionGate
from kubealign_services.generation.contract import (
    EngineLoad,
    EngineLost,
    GeneratedSample,
    GenerationRequest,
    RequestRefused,
)
from kubealign_services.generation.expected_weights import ExpectedWeights
from kubealign_services.generation.external.base_weights import BaseWeights
from kubealign_services.generation.external.contract import ExternalEngine, ExternalEngineDied
from kubealign_services.generation.external.native_adapters import NativeAdapters
from kubealign_services.generation.external.samples import (
    check_sampling_support,
    is_truncated,
    to_generated_sample,
)
from kubealign_services.generation.external.weight_files import WeightFiles, batch_tensors
from kubealign_services.generation.request_validation import check_request

NO_WEIGHTS = -1
_NO_BASE = "an adapter came before the weights that it is an adapter to"
#: Seconds of idleness after which an engine with betweenPhases Freed releases its memory.
IDLE_SECONDS = 5.0


@dataclass(frozen=True)
class ModelInfo:
    """Model properties that the generator needs.

    end_tokens: ids that end a response. decode: maps tokens to text, special tokens included. weights: the
    weights of its checkpoint.
    """

    context: int
    vocabulary: int
    end_tokens: frozenset[int]
    decode: Callable[[Sequence[int]], str]
    weights: ExpectedWeights


@dataclass(frozen=True)
class GeneratorOptions:
    """Options of an ExternalGenerator.

    trains_adapter: the job trains an adapter, so the base weights are kept. frees_memory: the engine
    releases its memory while it is idle; the last weights then stay in files.
    """

    max_sequences: int
    trains_adapter: bool = False
    frees_memory: bool = False


class ExternalGenerator:
    """A `Generator` over an ExternalEngine.

    files: files that transfer weights to the engine. native: adapters that the engine applies itself; without
    it they are merged into the base weights.
    """

    def __init__(
        self,
        engine: ExternalEngine,
        model: ModelInfo,
        files: WeightFiles,
        options: GeneratorOptions,
        observe: Callable[[EngineLoad], None] = lambda load: None,
        native: NativeAdapters | None = None,
    ) -> None:
        self._engine = engine
        self._model = model
        self._files = files
        self._options = options
        self._base = BaseWeights() if options.trains_adapter and native is None else None
        self._native = native
        self._observe = observe
        self._gate = AdmissionGate()
        self._death: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._memory_lock = asyncio.Lock()
        self._is_asleep = False
        self._version = NO_WEIGHTS
        self._active_requests: set[str] = set()
        self._score_count = 0
        self._sample_count = 0
        self.load = EngineLoad(free_sequences=options.max_sequences)

    @property
    def in_flight(self) -> int:
        return len(self._active_requests)

    async def run(self) -> None:
        """Run until the engine has died, and raise its error.

        Releases the memory of an idle engine meanwhile.
        """
        resting = asyncio.create_task(self._release_when_idle())
        try:
            done, _ = await asyncio.wait({resting, self._death}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            resting.cancel()
            await asyncio.gather(resting, return_exceptions=True)

    async def wait_for_weight_loss(self) -> str:
        """Wait for ever: an engine that dies ends `run`, and the worker with it."""
        await asyncio.Event().wait()
        raise AssertionError("the event is never set")

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[GeneratedSample]:
        check_request(request, self._model.context, self._model.vocabulary, self._active_requests)
        if not self._engine.scores_at_any_temperature:
            check_sampling_support(request)
        self._active_requests.add(request.request_id)
        try:
            async with self._gate.enter():
                await self._ensure_awake()
                tasks = [asyncio.create_task(self._sample(request, i)) for i in range(len(request.seeds))]
                self._update_load(len(tasks))
                missing = len(tasks)
                try:
                    for finished in asyncio.as_completed(tasks):
                        sample = await finished
                        missing -= 1
                        self.load.generated_tokens += len(sample.tokens)
                        self._update_load(-1)
                        yield sample
                finally:
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)
                    self._update_load(-missing)
        finally:
            self._active_requests.discard(request.request_id)

    async def _sample(self, request: GenerationRequest, index: int) -> GeneratedSample:
        started = time.monotonic()
        prompt, sampling = list(request.prompt_tokens), request.sampling
        ends = self._model.end_tokens | set(sampling.stop_token_ids)
        name = f"{request.request_id}/{index}"
        with self._death_recorded():
            drawn = await self._engine.generate(name, prompt, sampling, request.seeds[index], sorted(ends))
            logprobs = drawn.logprobs
            if is_truncated(sampling):
                temperature = sampling.temperature or 1.0
                scored = await self._engine.score(f"{name}/full", prompt + drawn.tokens, temperature)
                logprobs = scored[len(prompt) - 1 :]
        if not all(map(math.isfinite, [*drawn.logprobs, *logprobs])):
            raise ArithmeticError(f"the weights of version {self._version} give log-probabilities not finite")
        seconds = time.monotonic() - started
        decode, version = self._model.decode, self._version
        return to_generated_sample(request, index, drawn, logprobs, frozenset(ends), version, seconds, decode)

    @asynccontextmanager
    async def paused(self, in_flight: InFlightPolicy) -> AsyncIterator[None]:
        """Pause generation within the block. Raises ValueError for every mode but Drain."""
        _check_drain(in_flight)
        async with self._gate.close(drain=True):
            yield

    async def refit(
        self,
        tensors: Iterable[tuple[str, Tensor]],
        version: int,
        in_flight: InFlightPolicy = InFlightPolicy.DRAIN,
    ) -> None:
        """Load all weights.

        Raises ValueError for weights that do not fit the model (`ExpectedWeights.check`); files of weights
        that came before them have been loaded by then. Raises ValueError for every mode but Drain.
        """
        _check_drain(in_flight)
        await self._resume_memory()
        self._version = NO_WEIGHTS
        self._files.remove_kept()
        if self._native is not None:
            with self._death_recorded():
                await self._native.drop()
        fitting = self._model.weights.check(tensors)
        await self._load_weights(fitting if self._base is None else self._base.record(fitting))
        self._files.end_base()
        self._version = version

    async def adapt(
        self,
        tensors: Iterable[tuple[str, Tensor]],
        scale: float,
        version: int,
        in_flight: InFlightPolicy = InFlightPolicy.DRAIN,
    ) -> None:
        """Load an adapter, or merge it into the base weights and load the result.

        Raises RuntimeError before the base weights were loaded, ValueError for an adapter that does not
        fit the base, and for every mode but Drain.
        """
        _check_drain(in_flight)
        if self._native is not None:
            await self._load_native(self._native, tensors, scale, version)
            return
        if not self._base:
            raise RuntimeError(_NO_BASE)
        merged = await asyncio.to_thread(self._base.merge, tensors, scale)
        await self._ensure_awake()
        self._version = NO_WEIGHTS
        self._files.remove_adapted()
        await self._load_weights(merged.items())
        self._version = version

    async def _load_native(
        self, native: NativeAdapters, tensors: Iterable[tuple[str, Tensor]], scale: float, version: int
    ) -> None:
        if self._version == NO_WEIGHTS:
            raise RuntimeError(_NO_BASE)
        folder = await asyncio.to_thread(native.write, tensors, scale)
        await self._ensure_awake()
        self._version = NO_WEIGHTS
        with self._death_recorded():
            await native.load(folder)
        self._version = version

    async def hold_output_until(self, proof: asyncio.Future[None]) -> None:
        await asyncio.shield(proof)

    async def sequence_logprobs(self, tokens: list[int]) -> list[float]:
        await self._ensure_awake()
        self._score_count += 1
        with self._death_recorded():
            return await self._engine.score(f"sequence-{self._score_count}", tokens)

    async def continuation_logprobs(
        self, prompt: Sequence[int], continuations: Sequence[Sequence[int]]
    ) -> tuple[list[list[float]], int]:
        longest = len(prompt) + max(map(len, continuations), default=0)
        if not prompt or longest > self._model.context:
            raise RequestRefused(f"{longest} tokens after a prompt; the context has {self._model.context}")
        vocabulary = self._model.vocabulary
        for token in chain(prompt, *continuations):
            if not 0 <= token < vocabulary:
                raise RequestRefused(
                    f"a sequence of tokens holds {token}; the vocabulary has 0 to {vocabulary - 1}"
                )
        async with self._gate.enter():
            full = [await self.sequence_logprobs([*prompt, *tokens]) for tokens in continuations]
            return [logprobs[len(prompt) - 1 :] for logprobs in full], self._version

    async def _load_weights(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Transfer the tensors file by file. Files are kept where the engine may release its weights."""
        for batch in batch_tensors(tensors):
            path = await asyncio.to_thread(self._files.write, batch)
            try:
                with self._death_recorded():
                    await self._engine.load_weights(path)
            finally:
                if self._options.frees_memory:
                    self._files.kept_paths.append(path)
                else:
                    path.unlink(missing_ok=True)
        with self._death_recorded():
            await self._engine.finish_weight_update()

    async def _release_when_idle(self) -> None:
        """Release the engine's memory whenever it has been idle, where the spec asks for that."""
        while self._options.frees_memory:
            await self._gate.idle.wait()
            try:
                await asyncio.wait_for(self._gate.busy.wait(), IDLE_SECONDS)
            except TimeoutError:
                async with self._memory_lock:
                    if self._version != NO_WEIGHTS and not self._is_asleep and self._gate.idle.is_set():
                        await self._engine.release_memory()
                        self._is_asleep = True
                await self._gate.busy.wait()
        await asyncio.Event().wait()

    async def _ensure_awake(self) -> None:
        """Restore the memory and the last weights of an engine that has released its memory."""
        async with self._memory_lock:
            if self._version == NO_WEIGHTS:
                raise RuntimeError("the engine has no usable weights: refit it first")
            if self._is_asleep:
                with self._death_recorded():
                    await self._engine.resume_memory()
                    for path in self._files.kept_paths:
                        await self._engine.load_weights(path)
                    await self._engine.finish_weight_update()
                    if self._native is not None:
                        await self._native.restore()
                self._is_asleep = False

    async def _resume_memory(self) -> None:
        async with self._memory_lock:
            if self._is_asleep:
                with self._death_recorded():
                    await self._engine.resume_memory()
                self._is_asleep = False

    def _update_load(self, samples: int) -> None:
        self._sample_count += samples
        most = self._options.max_sequences
        self.load.running = min(self._sample_count, most)
        self.load.waiting = self._sample_count - self.load.running
        self.load.free_sequences = most - self.load.running
        self._observe(self.load)

    @contextmanager
    def _death_recorded(self) -> Iterator[None]:
        """Raise EngineLost where the engine is found dead within the block, and let `run` end."""
        try:
            yield
        except ExternalEngineDied as error:
            if not self._death.done():
                self._death.set_exception(error)
            raise EngineLost(str(error)) from error


def _check_drain(in_flight: InFlightPolicy) -> None:
    """Raise ValueError for every mode but Drain: external engines return whole responses without the weight
    version of each token.
    """
    if in_flight is not InFlightPolicy.DRAIN:
        raise ValueError(
            f"rollout.refit.inFlight is {in_flight}; this engine can only {InFlightPolicy.DRAIN}"
        )
