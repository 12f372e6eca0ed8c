"""Kubernetes events about jobs: sent in the background, repeated by count, never waited for."""

import asyncio
import logging
import time
import uuid
from collections import OrderedDict, deque
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from kubealign_operator.controller.api import METADATA_ONLY, Api, Json
from kubealign_operator.controller.failures import ApiAway, ApiFailure
from kubealign_operator.controller.metrics import Metrics
from kubealign_operator.controller.resources import EVENTS, JOBS
from kubealign_operator.render.names import FIELD_MANAGER
from kubealign_operator.render.rendered import Event

log = logging.getLogger(__name__)

_CONTROLLER = "kubealign.dev/operator"
_NOTE_BYTES = 1024
_UNSENT = 2000
_REMEMBERED = 2000
# A repetition within this time increases a count; the API server keeps events for about an hour.
_SAME_SECONDS = 600.0
_TRIES = 3
_PAUSE = 0.5


@dataclass
class _Told:
    name: str
    namespace: str
    count: int
    at: float


_Same = tuple[str, Event]


class Recorder:
    """Records events. `record` returns at once; `run` sends. Events that exceed the buffer are dropped and
    counted.
    """

    def __init__(self, api: Api, metrics: Metrics, instance: str) -> None:
        self._api = api
        self._metrics = metrics
        self._instance = instance
        self._unsent: deque[tuple[Json, Event]] = deque()
        self._news = asyncio.Event()
        self._told: OrderedDict[_Same, _Told] = OrderedDict()

    def record(self, job: Json, events: tuple[Event, ...]) -> None:
        """Enqueue events about this job."""
        for event in events:
            if len(self._unsent) >= _UNSENT:
                self._unsent.popleft()
                self._metrics.event_dropped()
            self._unsent.append((job, event))
            self._news.set()

    async def run(self) -> None:
        """Send events until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._unsent:
                job, event = self._unsent.popleft()
                await self._send(job, event)

    async def _send(self, job: Json, event: Event) -> None:
        for attempt in range(_TRIES):
            try:
                await self._tell(job, event)
                return
            except ApiAway as error:
                log.debug("%s", error)
            except ApiFailure as error:
                # A namespace that is being deleted accepts no events, which does no harm.
                if not error.passing:
                    log.debug("%s", error)
                    break
            await asyncio.sleep(_PAUSE * 2**attempt)
        self._metrics.event_dropped()

    async def _tell(self, job: Json, event: Event) -> None:
        metadata = job["metadata"]
        event_key = (str(metadata["uid"]), event)
        series = self._told.get(event_key)
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        if series is not None and time.monotonic() - series.at < _SAME_SECONDS:
            patch = {"count": series.count + 1, "lastObservedTime": now}
            path = EVENTS.named(series.namespace, series.name)
            await self._api.merge_patch(EVENTS, path, {"series": patch}, FIELD_MANAGER)
            series.count += 1
            series.at = time.monotonic()
            return
        name = f"{metadata['name']}.{uuid.uuid4().hex[:16]}"
        body = self._body(job, event, name, now)
        await self._api.create(
            EVENTS, EVENTS.collection(metadata["namespace"]), body, FIELD_MANAGER, METADATA_ONLY
        )
        self._told[event_key] = _Told(name, metadata["namespace"], 1, time.monotonic())
        while len(self._told) > _REMEMBERED:
            self._told.popitem(last=False)

    def _body(self, job: Json, event: Event, name: str, now: str) -> dict[str, Any]:
        metadata = job["metadata"]
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": metadata["namespace"]},
            "eventTime": now,
            "reportingController": _CONTROLLER,
            "reportingInstance": self._instance[:128],
            "action": "Reconcile",
            "type": str(event.type),
            "reason": event.reason,
            "note": _cut(event.message),
            "regarding": {
                "apiVersion": job.get("apiVersion") or "kubealign.dev/v1alpha1",
                "kind": JOBS.kind,
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": metadata["uid"],
                "resourceVersion": metadata["resourceVersion"],
            },
        }


def _cut(note: str) -> str:
    encoded = note.encode()
    if len(encoded) <= _NOTE_BYTES:
        return note
    return encoded[: _NOTE_BYTES - 3].decode(errors="ignore") + "..."
