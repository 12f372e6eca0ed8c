"""What a rollout engine is: requests in, finished samples out, one step at a time."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from torch import Tensor

from kubealign.spec.rollout import InFlight


@dataclass(frozen=True)
class SamplingParameters:
    """As in the spec's `rollout.sampling`. temperature 0: greedy. top_k 0: off. Seeds are the request's."""

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class GenerationRequest:
    """One group: `len(seeds)` samples of one prompt, which is computed once."""

    request_id: str
    prompt_tokens: tuple[int, ...]
    seeds: tuple[int, ...]
    sampling: SamplingParameters


class Finish(StrEnum):
    STOP = "stop"
    LENGTH = "length"


@dataclass
class GeneratedSample:
    """One finished sample.

    tokens: the response's ids, the one that ended it included. behaviour_logprobs [len(tokens)]: natural log,
    of the distribution really sampled from (temperature, top-k, top-p, forbidden ends, renormalised).
    engine_logprobs: of the full softmax at the same temperature (1 where it is 0). versions: the weight
    version that each token was made with. text: the response without the special token or the stop string
    that ended it.
    """

    request_id: str
    sample: int
    tokens: list[int]
    behaviour_logprobs: list[float]
    engine_logprobs: list[float]
    versions: list[int]
    finish: Finish
    text: str
    seconds: float = 0.0


@dataclass
class EngineLoad:
    """running, waiting, free_sequences: samples. Tokens are totals since the start: prefilled_tokens of
    prompts and of what was computed again, reused_tokens of prompts that were in the cache already.
    preemptions: how often a sequence had to give its cache to another. cache_used: share of the cache that
    running sequences hold."""

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
    the vocabulary."""


class Generator(Protocol):
    """What a rollout worker needs of an engine, wherever that runs: in the process (`SteppedGenerator` over a
    RolloutEngine), or in a server. Used on one event loop; `run` must be running for anything to come.

    The same request gives the same samples whatever else runs beside it.
    """

    load: EngineLoad

    @property
    def in_flight(self) -> int:
        """Groups that have not been handed out whole."""

    async def run(self) -> None:
        """Work for ever. Raises what ends the engine for good."""

    async def lost(self) -> str:
        """Return, with the cause, each time that the engine has lost its weights: it is started again without
        any. Never for an engine in the process, which ends with it."""

    def generate(self, request: GenerationRequest) -> AsyncGenerator[GeneratedSample]:
        """The group's samples, each as soon as it is finished. Leaving early frees what it held. Raises
        RequestRefused; EngineLost where the engine went away under it, or a refit came to nothing."""

    def quiet(self, in_flight: InFlight) -> AbstractAsyncContextManager[None]:
        """No token is made within the block, and nothing starts. Drain: what runs is finished first.
        Interrupt, Continue: it stands still, between two tokens, and goes on after the block; where the block
        fails with the weights touched, it ends with EngineLost instead."""

    async def refit(
        self, tensors: Iterable[tuple[str, Tensor]], version: int, in_flight: InFlight = InFlight.DRAIN
    ) -> None:
        """As `RolloutEngine.refit`. Call it within `quiet` of the same kind."""

    async def adapt(
        self,
        tensors: Iterable[tuple[str, Tensor]],
        scale: float,
        version: int,
        in_flight: InFlight = InFlight.DRAIN,
    ) -> None:
        """As `RolloutEngine.adapt`. Call it within `quiet` of the same kind."""

    async def proven_by(self, proof: asyncio.Future[None]) -> None:
        """What is made with the weights of the last `refit` or `adapt` is handed out when this is done; where
        it fails, all that is in flight ends with EngineLost. An engine that cannot keep it back waits here,
        and raises what it raises. Call it within the same `quiet`."""

    async def sequence_logprobs(self, tokens: list[int]) -> list[float]:
        """Log-probability of each token after the first, at temperature 1. Call it within `quiet`."""

    async def continuation_logprobs(
        self, prompt: Sequence[int], continuations: Sequence[Sequence[int]]
    ) -> tuple[list[list[float]], int]:
        """Log-probability of each continuation's tokens after the prompt, at temperature 1, and the version
        of the weights. Beside what runs, but not while `quiet` is held. Raises RequestRefused."""


class EngineLost(ConnectionError):
    """The engine's server went away while it held the request, or has not come back within its deadline; or
    a refit came to nothing. The work can be done again by whoever has an engine; this worker needs its
    weights anew."""


class RolloutEngine(Protocol):
    """An engine in the process. Not thread-safe: one thread calls it. The same request gives the same sample
    whatever else runs beside it."""

    version: int

    def add(self, request: GenerationRequest) -> None:
        """Queue it. Raises RequestRefused."""

    def abort(self, request_id: str) -> None:
        """Forget it and free what it holds."""

    def step(self) -> list[GeneratedSample]:
        """Admit what fits, make one token for every running sequence, return those that finished. Empty when
        idle."""

    def load(self) -> EngineLoad: ...

    def refit(
        self, tensors: Iterable[tuple[str, Tensor]], version: int, in_flight: InFlight = InFlight.DRAIN
    ) -> None:
        """Take new weights by Hugging Face name (all of them) and flush every cached prefix.

        in_flight: Drain: only while nothing runs. Interrupt: what runs keeps its tokens, gives back its keys
        and values, and is computed again with the new weights before it goes on. Continue: it goes on over
        the keys and values that it has. Each token says in `versions` which weights made it.

        Raises ValueError for a name or a shape that the model does not have, or one that is missing; the
        engine must then be refitted before it generates again, and what ran goes on then."""

    def adapt(
        self,
        tensors: Iterable[tuple[str, Tensor]],
        scale: float,
        version: int,
        in_flight: InFlight = InFlight.DRAIN,
    ) -> None:
        """Merge a low-rank adapter, named as in `adapters.low_rank`, into the weights of the last `refit`, in
        the place of any adapter before it; else as `refit`."""

    def sequence_logprobs(self, tokens: list[int]) -> list[float]:
        """Log-probabilities (temperature 1) of each token after the first, by a forward pass through the
        engine's own path."""
