"""Contract of rollout engines: requests go in, finished samples come out, one step at a time."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from torch import Tensor

from kubealign.spec.sections.rollout import InFlightPolicy
from kubealign_services.training.expert_routing import Routing

#: Weight version of the tokens that the reference model generated.
REFERENCE_VERSION = -1


@dataclass(frozen=True)
class SamplingParameters:
    """Sampling settings of the spec's `rollout.sampling`.

    temperature 0 means greedy, top_k 0 means off. Seeds belong to the request.
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class GenerationRequest:
    """One group: `len(seeds)` samples of one prompt, which is computed once.

    from_reference: the samples are the reference model's, not the policy's.
    """

    request_id: str
    prompt_tokens: tuple[int, ...]
    seeds: tuple[int, ...]
    sampling: SamplingParameters
    from_reference: bool = False


class FinishReason(StrEnum):
    """Reason for the end of a response."""

    STOP = "stop"
    LENGTH = "length"


@dataclass
class GeneratedSample:
    """One finished sample.

    tokens: the response's ids, including the token that ended the response. behaviour_logprobs
    [len(tokens)]: natural logarithm, under the distribution that was sampled from (after temperature,
    top-k, top-p, forbidden end tokens and renormalisation). engine_logprobs: under the full softmax at the
    same temperature (1 where the temperature is 0). versions: the weight version that each token was
    generated with, REFERENCE_VERSION for samples of the reference. text: the response without the special
    token or the stop string that ended it. routing [prompt + response - 1, layers, k]: where the engine
    records it, the experts of each token of the prompt and the response but the last, which no token follows.
    """

    request_id: str
    sample: int
    tokens: list[int]
    behaviour_logprobs: list[float]
    engine_logprobs: list[float]
    versions: list[int]
    finish: FinishReason
    text: str
    seconds: float = 0.0
    routing: Routing | None = None


@dataclass
class EngineLoad:
    """Load and counters of an engine.

    running, waiting, free_sequences count samples. Token counts are totals since the start:
    prefilled_tokens of prompts and recomputed texts, reused_tokens of prompts that were found in the
    cache. preemptions: number of times that a sequence had to give its cache pages to another. cache_used:
    share of the cache that running sequences use.
    """

    running: int = 0
    waiting: int = 0
    free_sequences: int = 0
    generated_tokens: int = 0
    prefilled_tokens: int = 0
    reused_tokens: int = 0
    preemptions: int = 0
    cache_used: float = 0.0


class RequestRefused(ValueError):
    """The request can never be served: its prompt and max_tokens do not fit the context, or a token is not in
    the vocabulary.
    """


class Generator(Protocol):
    """Interface between a rollout worker and its engine, in the process (`SteppedGenerator` over a
    RolloutEngine) or in a server.

    Used on one event loop; no sample is produced unless `run` is running. The same request gives the same
    samples whatever else runs at the same time.
    """

    load: EngineLoad

    @property
    def in_flight(self) -> int:
        """Number of groups with samples that have not been yielded."""

    async def run(self) -> None:
        """Work for ever. Raises the error that ends the engine for good."""

    async def wait_for_weight_loss(self) -> str:
        """Return, with the cause, each time that the engine has lost its weights: it restarts without
        weights.

        Never returns for an engine in the process, which ends together with the process.
        """

    def generate(self, request: GenerationRequest) -> AsyncGenerator[GeneratedSample]:
        """Yield the group's samples, each as soon as it is finished.

        Closing the generator early frees its resources.

        Raises RequestRefused; EngineLost where the engine disappeared during generation, or a refit
        failed.
        """

    def paused(self, in_flight: InFlightPolicy) -> AbstractAsyncContextManager[None]:
        """Generate no token and start no request within the block.

        Drain: running requests finish first. Interrupt, Continue: running requests stop between two tokens
        and resume after the block; where the block fails after the weights were touched, they end with
        EngineLost instead.
        """

    async def refit(
        self,
        tensors: Iterable[tuple[str, Tensor]],
        version: int,
        in_flight: InFlightPolicy = InFlightPolicy.DRAIN,
    ) -> None:
        """Load new weights; see `RolloutEngine.refit`. Call within `paused` of the same kind."""

    async def adapt(
        self,
        tensors: Iterable[tuple[str, Tensor]],
        scale: float,
        version: int,
        in_flight: InFlightPolicy = InFlightPolicy.DRAIN,
    ) -> None:
        """Load a new adapter; see `RolloutEngine.adapt`. Call within `paused` of the same kind."""

    async def hold_output_until(self, proof: asyncio.Future[None]) -> None:
        """Hold back the output of the weights of the last `refit` or `adapt` until `proof` is done.

        Where `proof` fails, all requests in flight end with EngineLost. An engine that cannot hold back
        its output waits for `proof` here and raises its error. Call within the same `paused` block.
        """

    async def sequence_logprobs(self, tokens: list[int]) -> list[float]:
        """Return the log-probability of each token after the first, at temperature 1.

        Call within `paused`.
        """

    async def continuation_logprobs(
        self, prompt: Sequence[int], continuations: Sequence[Sequence[int]]
    ) -> tuple[list[list[float]], int]:
        """Return the log-probabilities of each continuation's tokens after the prompt, at temperature 1, and
        the weight version.

        Runs at the same time as generation, but not within `paused`. Raises RequestRefused.
        """


class EngineLost(ConnectionError):
    """The engine's server disappeared while it held the request, or did not return within its deadline; or a
    refit failed.

    Another worker can repeat the request; this worker needs its weights again.
    """


class RolloutEngine(Protocol):
    """An engine in the process.

    Not thread-safe: one thread calls it. The same request gives the same sample whatever else runs at the
    same time.
    """

    version: int

    def add(self, request: GenerationRequest) -> None:
        """Queue a request. Raises RequestRefused."""

    def abort(self, request_id: str) -> None:
        """Drop a request and free its resources."""

    def step(self) -> list[GeneratedSample]:
        """Admit waiting requests that fit, generate one token for every running sequence, return the finished
        samples.

        Returns an empty list when idle.
        """

    def load(self) -> EngineLoad: ...

    def refit(
        self,
        tensors: Iterable[tuple[str, Tensor]],
        version: int,
        in_flight: InFlightPolicy = InFlightPolicy.DRAIN,
    ) -> None:
        """Load all weights by Hugging Face name and flush every cached prefix.

        in_flight: Drain: allowed only while no sequence runs. Interrupt: running sequences keep their
        tokens, release their keys and values, and are recomputed with the new weights before they
        continue. Continue: running sequences continue over their present keys and values. Each token
        records in `versions` the weight version that generated it.

        Raises ValueError for a name or a shape that the model does not have, or for a missing weight; the
        engine must then be refitted before it generates again, and the running sequences continue after
        that.
        """

    def adapt(
        self,
        tensors: Iterable[tuple[str, Tensor]],
        scale: float,
        version: int,
        in_flight: InFlightPolicy = InFlightPolicy.DRAIN,
    ) -> None:
        """Merge a low-rank adapter, named as in `adapters.lora`, into the weights of the last `refit`.

        Replaces any earlier adapter; otherwise behaves like `refit`.
        """

    def sequence_logprobs(self, tokens: list[int]) -> list[float]:
        """Return the log-probability (temperature 1) of each token after the first, by a forward pass through
        the engine's own path.
        """
