"""Writer of the read model in Redis, which feeds displays.

Never the source of truth: writing neither blocks nor fails.

Keys, after the job's prefix:
  status               hash: phase, step, max_steps, fence, weight_version, waiting_for, started_at,
                       updated_at, message
  metrics              stream, one entry a step: step, fence, json (object of numbers)
  samples              stream of the newest: step, json (see ReadModelWriter.add_sample)
  validation           stream of the newest responses to held-out prompts: step, fence, json
  heartbeat:PROCESS    JSON string that expires when its process no longer refreshes it

Times are Unix seconds. A number that JSON lacks is the text "nan", "inf" or "-inf".
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import TracebackType
from typing import Any, Self

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from kubealign.backoff import Backoff
from kubealign.process_settings import RedisAccess
from kubealign.read_model import MAX_ENTRY_BYTES
from kubealign_services.telemetry.json_values import to_json

log = logging.getLogger(__name__)

#: Maximum number of samples, and of their bytes: fewer are kept when they are long.
MAX_SAMPLES = 2000
MAX_SAMPLES_BYTES = 16 * 2**20
MAX_STEPS = 100_000
#: Maximum number of responses of one measurement, and of its bytes; the last ones are left out.
MAX_MEASUREMENT_SAMPLES = 500
MAX_MEASUREMENT_BYTES = 4 * 2**20
#: Bytes of the responses of all measurements: of long responses, fewer measurements are kept.
MAX_VALIDATION_BYTES = 16 * 2**20
HEARTBEAT_SECONDS = 15
#: Limits of the queue and of one batch, in entries and in characters.
_QUEUE_ENTRIES, _QUEUE_CHARACTERS = 10_000, 32 * 2**20
_BATCH_ENTRIES, _BATCH_CHARACTERS = 500, 4 * 2**20
_SOCKET_TIMEOUT_SECONDS = 5.0
_CANCEL_RETRY_SECONDS = 0.2
#: Characters of prompt and response that remain of a sample that exceeds MAX_ENTRY_BYTES.
_SHORT_TEXT = 2**18
_INITIAL_BACKOFF_SECONDS, _MAX_BACKOFF_SECONDS = 0.1, 5.0


@dataclass
class _SendQueue:
    """Queue of unsent values: the newest value of each key, and events in their order."""

    status: dict[str, str] = field(default_factory=dict)
    heartbeats: dict[str, str] = field(default_factory=dict)
    events: deque[tuple[str, int, dict[str, str]]] = field(default_factory=deque)
    #: Total length of the queued events.
    characters: int = 0

    def __bool__(self) -> bool:
        return bool(self.status or self.heartbeats or self.events)

    def append(self, stream: str, max_entries: int, entry: dict[str, str]) -> None:
        self.events.append((stream, max_entries, entry))
        self.characters += len(entry["json"])

    def popleft(self) -> None:
        _, _, entry = self.events.popleft()
        self.characters -= len(entry["json"])

    @property
    def is_full(self) -> bool:
        return len(self.events) >= _QUEUE_ENTRIES or self.characters >= _QUEUE_CHARACTERS

    def next_batch(self) -> list[tuple[str, int, dict[str, str]]]:
        """Return the oldest events, up to the size of one batch."""
        batch: list[tuple[str, int, dict[str, str]]] = []
        characters = 0
        for event in islice(self.events, _BATCH_ENTRIES):
            characters += len(event[2]["json"])
            if batch and characters > _BATCH_CHARACTERS:
                break
            batch.append(event)
        return batch


class ReadModelWriter:
    """Writes to Redis in the background while its context is open. Every method returns at once."""

    def __init__(self, access: RedisAccess) -> None:
        self._access = access
        self._unsent = _SendQueue()
        self._has_unsent = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None
        #: Entries dropped because the queue was full, or Redis was unreachable at shutdown.
        self.dropped = 0

    def set_status(self, **fields: str | int | float) -> None:
        """Set fields of the job's status; other fields are unchanged."""
        named = {**fields, "updated_at": time.time()}
        self._unsent.status.update({name: str(value) for name, value in named.items()})
        self._has_unsent.set()

    def add_metrics(self, step: int, fence: int, values: Mapping[str, float]) -> None:
        """Add the metrics of a step."""
        entry = {"step": str(step), "fence": str(fence), "json": to_json(dict(values))}
        self._append("metrics", MAX_STEPS, entry)

    def add_sample(self, step: int, sample: Mapping[str, Any]) -> None:
        """Add one response of a step.

        Fields: prompt, response, reward, rewards and explanations (by source), weight_version, truncated,
        group_id, purpose (train, validation or validation/SET), tokens (each as the text that it adds) and
        token_values (name -> a number for each token).
        """
        text = to_json(dict(sample))
        if len(text.encode(errors="replace")) > MAX_ENTRY_BYTES:
            text = to_json(_shorten(sample))
        max_entries = min(MAX_SAMPLES, max(1, MAX_SAMPLES_BYTES // len(text)))
        self._append("samples", max_entries, {"step": str(step), "json": text})

    def add_validation_samples(self, step: int, fence: int, samples: Sequence[Mapping[str, Any]]) -> None:
        """Add the responses of one measurement on held-out prompts, the first ones that the limits allow.

        Fields: set, prompt, response, scores and explanations (by source), truncated, group_id, shortened.
        """
        texts: list[str] = []
        size = 0
        for sample in samples[:MAX_MEASUREMENT_SAMPLES]:
            text = to_json(dict(sample))
            size += len(text.encode(errors="replace"))
            if size > MAX_MEASUREMENT_BYTES:
                break
            texts.append(text)
        # The stream is bounded by its number of entries, which follows from their mean size.
        max_entries = max(len(texts), MAX_VALIDATION_BYTES * len(texts) // max(1, size))
        for text in texts:
            self._append("validation", max_entries, {"step": str(step), "fence": str(fence), "json": text})

    def set_heartbeat(self, process: str, values: Mapping[str, Any]) -> None:
        """Set the heartbeat of a process to these fields."""
        self._unsent.heartbeats[process] = to_json(dict(values))
        self._has_unsent.set()

    async def __aenter__(self) -> Self:
        self._writer = asyncio.create_task(self._write_loop())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop writing after one last attempt of at most one second to send the queue."""
        if self._writer is not None:
            # The client may swallow a cancellation while it connects: repeat it until the task ends.
            while not self._writer.done():
                self._writer.cancel()
                await asyncio.wait([self._writer], timeout=_CANCEL_RETRY_SECONDS)
        if self._unsent:
            async with self._client() as client:
                try:
                    async with asyncio.timeout(1.0):
                        await self._send_all(client)
                except (RedisError, OSError):
                    self.dropped += len(self._unsent.events)
        if self.dropped:
            log.warning("telemetry was dropped: Redis was unreachable", extra={"entries": self.dropped})

    def _append(self, stream: str, max_entries: int, entry: dict[str, str]) -> None:
        if self._unsent.is_full:
            self._unsent.popleft()
            self.dropped += 1
        self._unsent.append(stream, max_entries, entry)
        self._has_unsent.set()

    def _client(self) -> Redis:
        return Redis(
            **self._access.options,
            socket_timeout=_SOCKET_TIMEOUT_SECONDS,
            socket_connect_timeout=_SOCKET_TIMEOUT_SECONDS,
            # Retries are made by the loop in _write_loop.
            retry=Retry(NoBackoff(), 0),
            decode_responses=True,
            # Send no HELLO and no CLIENT SETINFO: the job's user may send WRITER_COMMANDS only.
            protocol=2,
            driver_info=None,
        )

    async def _write_loop(self) -> None:
        backoff = Backoff(_INITIAL_BACKOFF_SECONDS, _MAX_BACKOFF_SECONDS, jitter=0.0)
        is_unreachable = False
        async with self._client() as client:
            while True:
                await self._has_unsent.wait()
                self._has_unsent.clear()
                try:
                    await self._send_all(client)
                except (RedisError, OSError) as error:
                    if not is_unreachable:
                        extra = {"address": self._address}
                        log.warning("the read model is unreachable: %s", error, extra=extra)
                    is_unreachable = True
                    self._has_unsent.set()
                    await asyncio.sleep(backoff.next_delay())
                else:
                    if is_unreachable:
                        log.info("the read model is reachable again", extra={"address": self._address})
                    is_unreachable = False
                    backoff.reset()

    @property
    def _address(self) -> str:
        return f"{self._access.host}:{self._access.port}"

    async def _send_all(self, client: Redis) -> None:
        while self._unsent:
            await self._send(client)

    async def _send(self, client: Redis) -> None:
        """Send one batch as a transaction. Entries leave the queue once Redis has confirmed them."""
        prefix = self._access.prefix
        status, heartbeats = dict(self._unsent.status), dict(self._unsent.heartbeats)
        events = self._unsent.next_batch()
        dropped = self.dropped
        async with client.pipeline(transaction=True) as pipeline:
            batch: Any = pipeline
            if status:
                batch.hset(f"{prefix}status", mapping=dict(status))
            for process, text in heartbeats.items():
                batch.set(f"{prefix}heartbeat:{process}", text, ex=HEARTBEAT_SECONDS)
            for stream, max_entries, entry in events:
                batch.xadd(f"{prefix}{stream}", dict(entry), maxlen=max_entries, approximate=True)
            await batch.execute()
        unsent = self._unsent
        for name, value in status.items():
            if unsent.status.get(name) == value:
                del unsent.status[name]
        for process, text in heartbeats.items():
            if unsent.heartbeats.get(process) == text:
                del unsent.heartbeats[process]
        # Events dropped meanwhile were the oldest, so they were among the sent ones.
        for _ in range(len(events) - (self.dropped - dropped)):
            unsent.popleft()


def _shorten(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sample without its tokens, and with the beginnings of its texts."""
    texts = {name: value[:_SHORT_TEXT] for name, value in sample.items() if isinstance(value, str)}
    return {**sample, **texts, "tokens": [], "token_values": {}}
