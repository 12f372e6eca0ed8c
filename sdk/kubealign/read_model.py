"""What a job shows of itself, read from Redis. It is never the truth: that is in the commits.

Keys, each after the prefix `kubealign:NAMESPACE:JOB:`
  status               hash {phase, step, max_steps, fence, weight_version, waiting_for, started_at,
                       updated_at, message}
  metrics              stream, an entry a step: {step, fence, json}
  samples              stream: {step, json}
  heartbeat:PROCESS    JSON, gone when the process has not refreshed it
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

from kubealign.process import RedisAccess

#: Where a stream begins: every entry comes after it.
BEGINNING = "0-0"
_ANSWER_SECONDS = 5.0
_ENTRIES_OF_A_STEP = 8
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
    #: Name -> a number for each of `tokens` (None: not known): logprobs, trainer_logprobs, logprob_gap, kl,
    #: advantages, values.
    token_values: dict[str, tuple[float | None, ...]] = field(default_factory=dict)


class ReadModel:
    """Reads one job's keys. An async context manager; every method raises ReadModelAway."""

    def __init__(self, access: RedisAccess) -> None:
        from redis.asyncio import Redis

        self._prefix = access.prefix
        self._redis: Any = Redis(
            **access.options,
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
        return _entries(await self._ask("xrevrange", self._prefix + "samples", "+", "-", count), _sample)

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
    # JSON has no NaN and no infinity: they come as text, which float reads.
    values = {
        name: float(value)
        for name, value in _object(held.get("json", "{}")).items()
        if (isinstance(value, int | float) and not isinstance(value, bool)) or value in _NOT_FINITE
    }
    return StepMetrics(entry, int(_number(held.get("step"))), int(_number(held.get("fence"))), values)


def _sample(entry: str, held: dict[str, str]) -> Sample:
    said = _object(held.get("json", "{}"))
    reward = said.get("reward")
    return Sample(
        entry=entry,
        step=int(_number(held.get("step"))),
        prompt=str(said.get("prompt", "")),
        response=str(said.get("response", "")),
        reward=None if reward is None else float(reward),
        rewards={
            name: float(value) for name, value in (said.get("rewards") or {}).items() if value is not None
        },
        weight_version=int(said.get("weight_version") or 0),
        truncated=bool(said.get("truncated", False)),
        group_id=str(said.get("group_id", "")),
        purpose=str(said.get("purpose", "")),
    )


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
