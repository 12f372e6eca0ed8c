"""What a job shows of itself, read from Redis. It is never the truth: that is in the commits.

Keys, each after the prefix `kubealign:NAMESPACE:JOB:`
  status               hash {phase, step, max_steps, fence, weight_version, waiting_for, started_at,
                       updated_at, message}
  metrics              stream, an entry a step: {step, fence, json}
  samples              stream: {step, json}
  heartbeat:PROCESS    JSON, gone when the process has not refreshed it
"""

import json
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

from kubealign.process import RedisAccess

#: Where a stream begins: every entry comes after it.
BEGINNING = "0-0"
_ANSWER_SECONDS = 5.0
_ENTRIES_OF_A_STEP = 8
_PAGE = 100
_NOT_FINITE = ("nan", "inf", "-inf")


class ReadModelAway(Exception):
    """Redis did not answer. Ask again later."""


@dataclass(frozen=True)
class JobProgress:
    """How far the job's driver has come. Times are seconds since the epoch; 0: not said."""

    phase: str = ""
    step: int = 0
    max_steps: int = 0
    fence: int = 0
    weight_version: int = 0
    waiting_for: str = ""
    started_at: float = 0.0
    updated_at: float = 0.0
    message: str = ""


@dataclass(frozen=True)
class StepMetrics:
    """The metrics of one step. `entry` is its place in the stream."""

    entry: str
    step: int
    fence: int
    values: dict[str, float]


@dataclass(frozen=True)
class Sample:
    """A response that the policy gave."""

    entry: str
    step: int
    prompt: str
    response: str
    reward: float | None = None
    rewards: dict[str, float] = field(default_factory=dict)
    weight_version: int = 0
    truncated: bool = False
    group_id: str = ""
    #: What it was sampled for: training, or validation.
    purpose: str = ""
    #: The response's tokens, each as the text that it adds; empty where they were not kept.
    tokens: tuple[str, ...] = ()
    #: Name -> a number for each of `tokens` (None: not known): logprobs (the engine's), trainer_logprobs,
    #: logprob_gap (engine's less trainer's), kl (trainer's less reference's), advantages, values.
    token_values: dict[str, tuple[float | None, ...]] = field(default_factory=dict)


class ReadModel:
    """Reads one job's keys. An async context manager; every method raises ReadModelAway."""

    def __init__(self, access: RedisAccess) -> None:
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        self._prefix = access.prefix
        self._redis: Any = Redis(
            **access.options,
            # Once, for a connection that broke while nobody used it; who asks is not kept waiting.
            retry=Retry(NoBackoff(), 1),
            decode_responses=True,
            socket_connect_timeout=_ANSWER_SECONDS,
            socket_timeout=_ANSWER_SECONDS,
        )

    async def __aenter__(self) -> "ReadModel":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._redis.aclose()

    def of(self, prefix: str) -> "ReadModel":
        """The same connections for the keys after another prefix. They are closed with this one; the other
        is not to be closed."""
        other = copy(self)
        other._prefix = prefix
        return other

    async def progress(self) -> JobProgress | None:
        """None as long as the driver has said nothing."""
        held: dict[str, str] = await self._ask("hgetall", self._prefix + "status")
        return _progress(held) if held else None

    async def metrics(self, after: str = BEGINNING, count: int = 1000) -> list[StepMetrics]:
        """The steps that came after this entry, oldest first."""
        return _entries(
            await self._ask("xrange", self._prefix + "metrics", f"({after}", "+", count), _step_metrics
        )

    async def newest_metrics(self) -> StepMetrics | None:
        """The last step's, with what was validated after it."""
        stream = await self._ask("xrevrange", self._prefix + "metrics", "+", "-", _ENTRIES_OF_A_STEP)
        newest: list[StepMetrics] = _entries(stream, _step_metrics)
        if not newest:
            return None
        values: dict[str, float] = {}
        for metrics in reversed([m for m in newest if m.step == newest[0].step]):
            values |= metrics.values
        return replace(newest[0], values=values)

    async def newest_samples(self, count: int = 8) -> list[Sample]:
        """The last samples, newest first."""
        return await self.samples(count=count, newest=True)

    async def samples(
        self,
        after: str = BEGINNING,
        count: int = 100,
        *,
        step: int | None = None,
        newest: bool = False,
    ) -> list[Sample]:
        """Those after the entry `after`, oldest first; `newest`: the last ones instead, newest first.
        `step`: of that step alone, and where it was done again after a rollback, of the last time."""
        if step is not None:
            found = await self._samples_of(step, after)
            return found[:count] if newest else found[::-1][:count]
        if newest:
            return await self._samples_before("+", after, count)
        stream = await self._ask("xrange", self._prefix + "samples", f"({after}", "+", count)
        return _entries(stream, _sample)

    async def _samples_before(self, end: str, after: str, count: int) -> list[Sample]:
        """Newest first."""
        return _entries(
            await self._ask("xrevrange", self._prefix + "samples", end, f"({after}", count), _sample
        )

    async def _samples_of(self, step: int, after: str) -> list[Sample]:
        """Newest first. Read from the end, where the last time that the step was done comes first."""
        found: list[Sample] = []
        end = "+"
        while page := await self._samples_before(end, after, _PAGE):
            for sample in page:
                if sample.step == step:
                    found.append(sample)
                elif found:
                    return found
            end = f"({page[-1].entry}"
        return found

    async def heartbeats(self, processes: Sequence[str]) -> dict[str, dict[str, Any]]:
        """What each of these processes last said; those that have been silent are left out."""
        if not processes:
            return {}
        said = await self._ask("mget", [f"{self._prefix}heartbeat:{name}" for name in processes])
        return {name: _object(text) for name, text in zip(processes, said, strict=True) if text is not None}

    async def _ask(self, command: str, *arguments: Any) -> Any:
        from redis.exceptions import RedisError

        try:
            return await getattr(self._redis, command)(*arguments)
        except (RedisError, OSError, TimeoutError) as error:
            raise ReadModelAway(f"Redis did not answer {command.upper()}: {error}") from error


def _progress(held: dict[str, str]) -> JobProgress:
    return JobProgress(
        phase=held.get("phase", ""),
        step=int(_number(held.get("step"))),
        max_steps=int(_number(held.get("max_steps"))),
        fence=int(_number(held.get("fence"))),
        weight_version=int(_number(held.get("weight_version"))),
        waiting_for=held.get("waiting_for", ""),
        started_at=_number(held.get("started_at")),
        updated_at=_number(held.get("updated_at")),
        message=held.get("message", ""),
    )


def _step_metrics(entry: str, held: dict[str, str]) -> StepMetrics:
    values = {
        name: number
        for name, value in _object(held.get("json", "{}")).items()
        if (number := number_of(value)) is not None
    }
    return StepMetrics(entry, int(_number(held.get("step"))), int(_number(held.get("fence"))), values)


def _sample(entry: str, held: dict[str, str]) -> Sample:
    return sample_of(entry, int(_number(held.get("step"))), _object(held.get("json", "{}")))


def sample_of(entry: str, step: int, said: Mapping[str, Any]) -> Sample:
    """The sample that a driver wrote as this JSON object, to Redis or to its run folder's samples.jsonl."""
    tokens = said.get("tokens")
    values = said.get("token_values")
    return Sample(
        entry=entry,
        step=step,
        prompt=str(said.get("prompt", "")),
        response=str(said.get("response", "")),
        reward=number_of(said.get("reward")),
        rewards={
            name: number
            for name, value in (said.get("rewards") or {}).items()
            if (number := number_of(value)) is not None
        },
        weight_version=int(said.get("weight_version") or 0),
        truncated=bool(said.get("truncated", False)),
        group_id=str(said.get("group_id", "")),
        purpose=str(said.get("purpose", "")),
        tokens=tuple(str(token) for token in tokens) if isinstance(tokens, list) else (),
        token_values={
            str(name): tuple(number_of(value) for value in column)
            for name, column in (values if isinstance(values, dict) else {}).items()
            if isinstance(column, list)
        },
    )


def number_of(value: Any) -> float | None:
    """JSON has no NaN and no infinity: they come as text, which float reads. None for anything else."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number or value in _NOT_FINITE else None


def _entries(stream: list[tuple[str, dict[str, str]]], read: Any) -> list[Any]:
    return [read(entry, held) for entry, held in stream]


def _object(text: str) -> dict[str, Any]:
    """Empty for what is not a JSON object: a reader of telemetry does not fail by what it reads."""
    try:
        held = json.loads(text)
    except json.JSONDecodeError:
        return {}
    return held if isinstance(held, dict) else {}


def _number(text: str | None) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0
