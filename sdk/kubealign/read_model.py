"""Read model of a job in Redis. It is a derived view; the checkpoints are authoritative.

Keys, each after the prefix `kubealign:NAMESPACE:JOB:`
  status               hash {phase, step, max_steps, fence, weight_version, waiting_for, started_at,
                       updated_at, message}
  metrics              stream, an entry a step: {step, fence, json}
  samples              stream: {step, json}
  heartbeat:PROCESS    JSON, expires unless the process refreshes it
"""

import json
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

from kubealign.process_settings import RedisAccess

#: Start of a stream: every entry comes after it.
STREAM_START = "0-0"
_TIMEOUT_SECONDS = 5.0
_MAX_ENTRIES_PER_STEP = 8
_PAGE_SIZE = 100
_NON_FINITE_TEXTS = ("nan", "inf", "-inf")


class ReadModelUnavailable(Exception):
    """Redis did not respond; retry later."""


@dataclass(frozen=True)
class JobProgress:
    """Progress of a job's driver. Times are in seconds since the epoch; 0 means unknown."""

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
    """Metrics of one step. `entry` is the position in the stream."""

    entry: str
    step: int
    fence: int
    values: dict[str, float]


@dataclass(frozen=True)
class SampleRecord:
    """Response of the policy to a prompt."""

    entry: str
    step: int
    prompt: str
    response: str
    reward: float | None = None
    #: By source; None: the reward does not apply to the sample.
    rewards: dict[str, float | None] = field(default_factory=dict)
    weight_version: int = 0
    truncated: bool = False
    group_id: str = ""
    #: Purpose of the sample: training, or validation.
    purpose: str = ""
    #: Tokens of the response, each as the text that it adds; empty if not recorded.
    tokens: tuple[str, ...] = ()
    #: Name -> a number per token (None: unknown): logprobs (the engine's), trainer_logprobs,
    #: logprob_gap (engine's less trainer's), kl (trainer's less reference's), advantages, values.
    token_values: dict[str, tuple[float | None, ...]] = field(default_factory=dict)


class ReadModelClient:
    """Reads one job's keys. An async context manager; every method raises ReadModelUnavailable."""

    def __init__(self, access: RedisAccess) -> None:
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        self._prefix = access.prefix
        self._redis: Any = Redis(
            **access.options,
            # One retry, for an idle connection that broke; more would keep the caller waiting.
            retry=Retry(NoBackoff(), 1),
            decode_responses=True,
            socket_connect_timeout=_TIMEOUT_SECONDS,
            socket_timeout=_TIMEOUT_SECONDS,
        )

    async def __aenter__(self) -> "ReadModelClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._redis.aclose()

    def with_prefix(self, prefix: str) -> "ReadModelClient":
        """Return a client with the same connections for the keys of another prefix.

        The connections are closed with this client; the returned one must not be closed.
        """
        client = copy(self)
        client._prefix = prefix
        return client

    async def progress(self) -> JobProgress | None:
        """Return the driver's progress; None if nothing was reported yet."""
        fields: dict[str, str] = await self._execute("hgetall", self._prefix + "status")
        return _parse_progress(fields) if fields else None

    async def metrics(self, after: str = STREAM_START, count: int = 1000) -> list[StepMetrics]:
        """Return the steps after this entry, oldest first."""
        return _parse_entries(
            await self._execute("xrange", self._prefix + "metrics", f"({after}", "+", count),
            _parse_step_metrics,
        )

    async def newest_metrics(self) -> StepMetrics | None:
        """Return the metrics of the last step, including its validation metrics."""
        stream = await self._execute("xrevrange", self._prefix + "metrics", "+", "-", _MAX_ENTRIES_PER_STEP)
        newest: list[StepMetrics] = _parse_entries(stream, _parse_step_metrics)
        if not newest:
            return None
        values: dict[str, float] = {}
        for metrics in reversed([m for m in newest if m.step == newest[0].step]):
            values |= metrics.values
        return replace(newest[0], values=values)

    async def newest_samples(self, count: int = 8) -> list[SampleRecord]:
        """Return the last samples, newest first."""
        return await self.samples(count=count, newest=True)

    async def samples(
        self,
        after: str = STREAM_START,
        count: int = 100,
        *,
        step: int | None = None,
        newest: bool = False,
    ) -> list[SampleRecord]:
        """Return at most `count` samples.

        Args:
            after: Only samples after this entry.
            step: Only samples of this step; of a step that was repeated after a rollback, those of the
                last attempt.
            newest: Return the last samples, newest first, instead of the first ones, oldest first.
        """
        if step is not None:
            selected = await self._samples_of_step(step, after)
            return selected[:count] if newest else selected[::-1][:count]
        if newest:
            return await self._samples_before("+", after, count)
        stream = await self._execute("xrange", self._prefix + "samples", f"({after}", "+", count)
        return _parse_entries(stream, _parse_stream_sample)

    async def _samples_before(self, end: str, after: str, count: int) -> list[SampleRecord]:
        """Return samples, newest first."""
        return _parse_entries(
            await self._execute("xrevrange", self._prefix + "samples", end, f"({after}", count),
            _parse_stream_sample,
        )

    async def _samples_of_step(self, step: int, after: str) -> list[SampleRecord]:
        """Return samples of a step, newest first, read from the end to find the step's last attempt first."""
        selected: list[SampleRecord] = []
        end = "+"
        while page := await self._samples_before(end, after, _PAGE_SIZE):
            for sample in page:
                if sample.step == step:
                    selected.append(sample)
                elif selected:
                    return selected
            end = f"({page[-1].entry}"
        return selected

    async def heartbeats(self, processes: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return the last heartbeat of each of these processes; silent processes are omitted."""
        if not processes:
            return {}
        values = await self._execute("mget", [f"{self._prefix}heartbeat:{name}" for name in processes])
        return {
            name: _parse_object(text)
            for name, text in zip(processes, values, strict=True)
            if text is not None
        }

    async def _execute(self, command: str, *arguments: Any) -> Any:
        from redis.exceptions import RedisError

        try:
            return await getattr(self._redis, command)(*arguments)
        except (RedisError, OSError, TimeoutError) as error:
            raise ReadModelUnavailable(f"Redis did not answer {command.upper()}: {error}") from error


def _parse_progress(fields: dict[str, str]) -> JobProgress:
    return JobProgress(
        phase=fields.get("phase", ""),
        step=int(_parse_float(fields.get("step"))),
        max_steps=int(_parse_float(fields.get("max_steps"))),
        fence=int(_parse_float(fields.get("fence"))),
        weight_version=int(_parse_float(fields.get("weight_version"))),
        waiting_for=fields.get("waiting_for", ""),
        started_at=_parse_float(fields.get("started_at")),
        updated_at=_parse_float(fields.get("updated_at")),
        message=fields.get("message", ""),
    )


def _parse_step_metrics(entry: str, fields: dict[str, str]) -> StepMetrics:
    values = {
        name: number
        for name, value in _parse_object(fields.get("json", "{}")).items()
        if (number := parse_number(value)) is not None
    }
    return StepMetrics(
        entry, int(_parse_float(fields.get("step"))), int(_parse_float(fields.get("fence"))), values
    )


def _parse_stream_sample(entry: str, fields: dict[str, str]) -> SampleRecord:
    return parse_sample(entry, int(_parse_float(fields.get("step"))), _parse_object(fields.get("json", "{}")))


def parse_sample(entry: str, step: int, document: Mapping[str, Any]) -> SampleRecord:
    """Parse a sample that the driver wrote as a JSON object, to Redis or to samples.jsonl of the run
    directory.
    """
    tokens = document.get("tokens")
    values = document.get("token_values")
    return SampleRecord(
        entry=entry,
        step=step,
        prompt=str(document.get("prompt", "")),
        response=str(document.get("response", "")),
        reward=parse_number(document.get("reward")),
        rewards={
            name: number
            for name, value in (document.get("rewards") or {}).items()
            if (number := parse_number(value)) is not None or value is None
        },
        weight_version=int(document.get("weight_version") or 0),
        truncated=bool(document.get("truncated", False)),
        group_id=str(document.get("group_id", "")),
        purpose=str(document.get("purpose", "")),
        tokens=tuple(str(token) for token in tokens) if isinstance(tokens, list) else (),
        token_values={
            str(name): tuple(parse_number(value) for value in column)
            for name, column in (values if isinstance(values, dict) else {}).items()
            if isinstance(column, list)
        },
    )


def parse_number(value: Any) -> float | None:
    """Return the number of a JSON value; None for anything that is not a number.

    JSON has no NaN and no infinity: these are written as text, which float reads.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number or value in _NON_FINITE_TEXTS else None


def _parse_entries(stream: list[tuple[str, dict[str, str]]], read: Any) -> list[Any]:
    return [read(entry, fields) for entry, fields in stream]


def _parse_object(text: str) -> dict[str, Any]:
    """Parse a JSON object; empty for invalid text, so that corrupt telemetry does not fail its reader."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _parse_float(text: str | None) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0
