"""Read model of a job in Redis. It is a derived view; the checkpoints are authoritative.

Keys, each after the prefix `kubealign:NAMESPACE:JOB:`
  status               hash {phase, step, max_steps, fence, weight_version, waiting_for, started_at,
                       updated_at, message}
  metrics              stream, an entry a step: {step, fence, json}
  samples              stream: {step, json}
  validation           stream of the responses to held-out prompts: {step, fence, json}
  heartbeat:PROCESS    JSON, expires unless the process refreshes it

Any process of the job, a reward function included, can write these keys: every read is bounded, and what no
driver writes raises ReadModelUnreadable.
"""

import math
from collections.abc import Awaitable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

from kubealign.bounded_json import BoundedJsonError, parse_bounded_json
from kubealign.process_settings import RedisAccess

#: Start of a stream: every entry comes after it.
STREAM_START = "0-0"
#: Largest entry of a stream, in bytes of JSON. The writer keeps to it.
MAX_ENTRY_BYTES = 4 * 2**20
#: Largest heartbeat, in bytes of JSON.
MAX_HEARTBEAT_BYTES = 16 * 2**10
#: A page of a stream ends after this many bytes, also before its number of entries is reached.
MAX_PAGE_BYTES = 8 * 2**20
_TIMEOUT_SECONDS = 5.0
# Most steps have one entry; a validation adds one. One entry more shows that the step has no other.
_USUAL_ENTRIES_PER_STEP, _MAX_ENTRIES_PER_STEP = 1, 8
_PAGE_SIZE = 100
# Entries of one command: the number doubles while the replies are small.
_FIRST_BATCH, _MAX_BATCH = 16, 1024
_MAX_JSON_DEPTH = 16
_MAX_INTEGER = 2**63 - 1
_STATUS_FIELDS = (
    "phase",
    "step",
    "max_steps",
    "fence",
    "weight_version",
    "waiting_for",
    "started_at",
    "updated_at",
    "message",
)
_NON_FINITE_TEXTS = ("nan", "inf", "-inf")


@dataclass(frozen=True)
class _RawEntry:
    """Entry of a stream as it is stored, with its key for error messages."""

    key: str
    entry: str
    fields: dict[bytes, bytes]

    @property
    def size(self) -> int:
        return sum(len(name) + len(value) for name, value in self.fields.items())

    def integer(self, name: bytes) -> int:
        return _parse_int(_decode(self.fields.get(name)))

    def document(self) -> dict[str, Any]:
        """Return the JSON object. Raises ReadModelUnreadable."""
        return _parse_object(
            f"entry {self.entry} of {self.key}", self.fields.get(b"json", b"{}"), MAX_ENTRY_BYTES
        )


class ReadModelUnavailable(Exception):
    """Redis did not respond; retry later."""


class ReadModelUnreadable(ReadModelUnavailable):
    """A key of the job has contents that the job's driver does not write. The message names the key."""


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
    #: By source: what the reward reports about the response, for those that explain it.
    explanations: dict[str, str] = field(default_factory=dict)


class ReadModelClient:
    """Reads one job's keys. An async context manager.

    Every method raises ReadModelUnavailable, and ReadModelUnreadable for a key of another type, an entry
    that is too large, or one that is not a JSON object.

    Args:
        max_page_bytes: Size of the largest reply, and after which a page of a stream ends.
    """

    def __init__(self, access: RedisAccess, max_page_bytes: int = MAX_PAGE_BYTES) -> None:
        from kubealign.redis_replies import bounded_redis

        self._prefix = access.prefix
        self._max_page_bytes = max_page_bytes
        # One retry, for an idle connection that broke; more would keep the caller waiting.
        self._redis: Any = bounded_redis(
            max_page_bytes, timeout_seconds=_TIMEOUT_SECONDS, retries=1, **access.options
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
        values = await self._execute("status", "hmget", _STATUS_FIELDS)
        fields = {
            name: _decode(value)
            for name, value in zip(_STATUS_FIELDS, values, strict=True)
            if value is not None
        }
        return _parse_progress(fields) if fields else None

    async def metrics(self, after: str = STREAM_START, count: int = 1000) -> list[StepMetrics]:
        """Return the steps after this entry, oldest first: at most `count` of them, and no more than fit in
        a page. Only an empty page is the last one.
        """
        page = await self._read_page("metrics", "xrange", f"({after}", "+", count)
        return [_parse_step_metrics(raw) for raw in page]

    async def newest_metrics(self) -> StepMetrics | None:
        """Return the metrics of the last step, including its validation metrics."""
        for count in (_USUAL_ENTRIES_PER_STEP + 1, _MAX_ENTRIES_PER_STEP):
            page = await self._read_page("metrics", "xrevrange", "+", "-", count)
            entries = [raw for raw in page if raw.integer(b"step") == page[0].integer(b"step")]
            if len(entries) < count:
                break
        if not entries:
            return None
        newest = [_parse_step_metrics(raw) for raw in entries]
        values: dict[str, float] = {}
        for metrics in reversed(newest):
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
        """Return at most `count` samples, and no more than fit in a page.

        Without `step`, only an empty page is the last one.

        Args:
            after: Only samples after this entry.
            step: Only samples of this step; of a step that was repeated after a rollback, those of the
                last attempt.
            newest: Return the last samples, newest first, instead of the first ones, oldest first.
        """
        if step is not None:
            page = await self._entries_of_step("samples", step, after)
            page = (page if newest else page[::-1])[:count]
        elif newest:
            page = await self._read_page("samples", "xrevrange", "+", f"({after}", count)
        else:
            page = await self._read_page("samples", "xrange", f"({after}", "+", count)
        return [parse_sample(raw.entry, raw.integer(b"step"), raw.document()) for raw in page]

    async def validation_documents(self, step: int) -> list[dict[str, Any]]:
        """Return the JSON objects of the responses to held-out prompts at a step, in the order in which they
        were written; of a step that was validated again, those of the last attempt.

        No more than fit in a page are returned.
        """
        entries = await self._entries_of_step("validation", step, STREAM_START)
        if not entries:
            return []
        fence = entries[0].integer(b"fence")
        return [raw.document() for raw in reversed(entries) if raw.integer(b"fence") == fence]

    async def _entries_of_step(self, stream: str, step: int, after: str) -> list[_RawEntry]:
        """Return entries of a step, newest first, read from the end to find the step's last attempt first.

        The oldest ones that exceed a page are left out.
        """
        selected: list[_RawEntry] = []
        end, size = "+", 0
        while page := await self._read_page(stream, "xrevrange", end, f"({after}", _PAGE_SIZE):
            for raw in page:
                if raw.integer(b"step") == step:
                    size += raw.size
                    if selected and size > self._max_page_bytes:
                        return selected
                    selected.append(raw)
                elif selected:
                    return selected
            end = f"({page[-1].entry}"
        return selected

    async def heartbeats(self, processes: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return the last heartbeat of each of these processes; silent processes are omitted.

        A heartbeat that cannot be read is {"unreadable": the reason}: it hides those of no other process.
        """
        if not processes:
            return {}
        keys = [f"{self._prefix}heartbeat:{name}" for name in processes]
        async with self._redis.pipeline(transaction=False) as pipeline:
            for key in keys:
                # One byte more than allowed: the reply is bounded, and shows that the value is longer.
                pipeline.getrange(key, 0, MAX_HEARTBEAT_BYTES)
            values = await self._call("GETRANGE", pipeline.execute(raise_on_error=False))
        return {
            name: _parse_heartbeat(key, value)
            for name, key, value in zip(processes, keys, values, strict=True)
            if value != b""
        }

    async def _read_page(
        self, stream: str, command: str, first: str, last: str, count: int
    ) -> list[_RawEntry]:
        """Return at most `count` entries, and no more than fit in a page, in the command's order."""
        from kubealign.redis_replies import ReplyTooLarge

        page: list[_RawEntry] = []
        size, batch = 0, _FIRST_BATCH
        while len(page) < count:
            batch = min(batch, count - len(page))
            try:
                entries = await self._send(stream, command, first, last, batch)
            except ReplyTooLarge as error:
                if batch == 1:
                    reason = f"the entry next to {first} exceeds {self._max_page_bytes} bytes"
                    raise ReadModelUnreadable(_unreadable(self._prefix + stream, reason)) from error
                batch = 1
                continue
            for entry, fields in entries:
                raw = _RawEntry(self._prefix + stream, _decode(entry), fields)
                size += raw.size
                if page and size > self._max_page_bytes:
                    return page
                page.append(raw)
            if len(entries) < batch:
                break
            first = f"({page[-1].entry}"
            batch = min(2 * batch, _MAX_BATCH)
        return page

    async def _execute(self, name: str, command: str, *arguments: Any) -> Any:
        """Send a command about one of the job's keys."""
        from kubealign.redis_replies import ReplyTooLarge

        try:
            return await self._send(name, command, *arguments)
        except ReplyTooLarge as error:
            raise ReadModelUnreadable(_unreadable(self._prefix + name, str(error))) from error

    async def _send(self, name: str, command: str, *arguments: Any) -> Any:
        """Send a command about one of the job's keys. Raises ReplyTooLarge in addition."""
        from redis.exceptions import ResponseError

        key = self._prefix + name
        try:
            return await self._call(command.upper(), getattr(self._redis, command)(key, *arguments))
        except ResponseError as error:
            if not str(error).startswith("WRONGTYPE"):
                raise ReadModelUnavailable(f"Redis refused {command.upper()}: {error}") from error
            raise ReadModelUnreadable(_unreadable(key, str(error))) from error

    async def _call(self, command: str, call: Awaitable[Any]) -> Any:
        """Await a call. Raises ReplyTooLarge and ResponseError, an answer of Redis, in addition."""
        from redis.exceptions import RedisError, ResponseError

        from kubealign.redis_replies import ReplyTooLarge

        try:
            return await call
        except (ReplyTooLarge, ResponseError):
            raise
        except (RedisError, OSError, TimeoutError) as error:
            raise ReadModelUnavailable(f"Redis did not answer {command}: {error}") from error


def _unreadable(key: str, reason: str) -> str:
    return f"the key {key} cannot be read: {reason}. A process of the job has written it"


def _parse_progress(fields: dict[str, str]) -> JobProgress:
    return JobProgress(
        phase=fields.get("phase", ""),
        step=_parse_int(fields.get("step")),
        max_steps=_parse_int(fields.get("max_steps")),
        fence=_parse_int(fields.get("fence")),
        weight_version=_parse_int(fields.get("weight_version")),
        waiting_for=fields.get("waiting_for", ""),
        started_at=_parse_float(fields.get("started_at")),
        updated_at=_parse_float(fields.get("updated_at")),
        message=fields.get("message", ""),
    )


def _parse_step_metrics(raw: _RawEntry) -> StepMetrics:
    values = {
        name: number for name, value in raw.document().items() if (number := parse_number(value)) is not None
    }
    return StepMetrics(raw.entry, raw.integer(b"step"), raw.integer(b"fence"), values)


def parse_sample(entry: str, step: int, document: Mapping[str, Any]) -> SampleRecord:
    """Parse a sample that the driver wrote as a JSON object, to Redis or to samples.jsonl of the run
    directory. A value of another type than the driver's counts as absent.
    """
    tokens = document.get("tokens")
    rewards = document.get("rewards")
    explanations = document.get("explanations")
    values = document.get("token_values")
    return SampleRecord(
        entry=entry,
        step=step,
        prompt=str(document.get("prompt", "")),
        response=str(document.get("response", "")),
        reward=parse_number(document.get("reward")),
        rewards={
            name: number
            for name, value in (rewards if isinstance(rewards, dict) else {}).items()
            if (number := parse_number(value)) is not None or value is None
        },
        explanations={
            str(name): text
            for name, text in (explanations if isinstance(explanations, dict) else {}).items()
            if isinstance(text, str)
        },
        weight_version=_to_int(parse_number(document.get("weight_version"))),
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


def _parse_heartbeat(key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, bytes):
        return {"unreadable": str(value)}
    try:
        return _parse_object(key, value, MAX_HEARTBEAT_BYTES)
    except ReadModelUnreadable as error:
        return {"unreadable": str(error)}


def _parse_object(key: str, data: bytes, max_bytes: int) -> dict[str, Any]:
    try:
        value = parse_bounded_json(data, max_bytes, _MAX_JSON_DEPTH)
    except BoundedJsonError as error:
        raise ReadModelUnreadable(_unreadable(key, str(error))) from error
    if not isinstance(value, dict):
        raise ReadModelUnreadable(_unreadable(key, f"{type(value).__name__} is not a JSON object"))
    return value


def _decode(data: bytes | None) -> str:
    return (data or b"").decode(errors="replace")


def _parse_int(text: str | None) -> int:
    return _to_int(_parse_float(text))


def _to_int(number: float | None) -> int:
    """Return the integer; 0, unknown, for a number that no counter reaches."""
    return int(number) if number is not None and abs(number) <= _MAX_INTEGER else 0


def _parse_float(text: str | None) -> float:
    """Return the finite number; 0, unknown, for any other text."""
    try:
        number = float(text or 0)
    except ValueError:
        return 0.0
    return number if math.isfinite(number) else 0.0
