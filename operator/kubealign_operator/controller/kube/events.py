"""Kubernetes events about jobs and pods: sent in the background, repeated by count, never waited for."""

import asyncio
import logging
import time
import uuid
from collections import OrderedDict, deque
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from kubealign.backoff import Backoff
from kubealign.errors import Unavailable
from kubealign.kube.api import METADATA_ONLY, Json, KubernetesApi
from kubealign.kube.errors import ApiStatusError
from kubealign.kube.resources import EVENTS, JOBS, PODS
from kubealign.labels import EVENT_CONTROLLER
from kubealign_operator.controller.metrics import OperatorMetrics
from kubealign_operator.names import FIELD_MANAGER
from kubealign_operator.planner.plan import PlannedEvent

log = logging.getLogger(__name__)

_QUERY = {"fieldManager": FIELD_MANAGER}
_NOTE_BYTES = 1024
_MAX_UNSENT = 2000
#: Unsent events beyond which those about pods are dropped: a restart of a large job has one for each pod.
_MAX_UNSENT_OF_PODS = 1000
_MAX_SERIES = 2000
# A repetition within this time increases a count; the API server keeps events for about an hour.
_SERIES_SECONDS = 600.0
_MAX_ATTEMPTS = 3
_RETRY_SECONDS, _MAX_RETRY_SECONDS = 0.5, 2.0


@dataclass
class _EventSeries:
    name: str
    namespace: str
    count: int
    at: float


_EventKey = tuple[str, PlannedEvent]


class EventRecorder:
    """Records events.

    `record` returns at once; `run` sends. Events that exceed the buffer are dropped and counted.
    """

    def __init__(self, api: KubernetesApi, metrics: OperatorMetrics, instance: str) -> None:
        self._api = api
        self._metrics = metrics
        self._instance = instance
        self._unsent: deque[tuple[Json, PlannedEvent]] = deque()
        self._has_unsent = asyncio.Event()
        self._series: OrderedDict[_EventKey, _EventSeries] = OrderedDict()

    def record(self, job: Json, events: tuple[PlannedEvent, ...]) -> None:
        """Enqueue events about this job and its pods."""
        for event in events:
            if event.pod is not None and len(self._unsent) >= _MAX_UNSENT_OF_PODS:
                self._metrics.record_dropped_event()
                continue
            if len(self._unsent) >= _MAX_UNSENT:
                self._unsent.popleft()
                self._metrics.record_dropped_event()
            self._unsent.append((job, event))
            self._has_unsent.set()

    async def run(self) -> None:
        """Send events until cancelled."""
        while True:
            await self._has_unsent.wait()
            self._has_unsent.clear()
            while self._unsent:
                job, event = self._unsent.popleft()
                await self._send(job, event)

    async def _send(self, job: Json, event: PlannedEvent) -> None:
        backoff = Backoff(_RETRY_SECONDS, _MAX_RETRY_SECONDS, jitter=0.0)
        for _ in range(_MAX_ATTEMPTS):
            try:
                await self._publish(job, event)
                return
            except Unavailable as error:
                log.debug("%s", error)
            except ApiStatusError as error:
                # A namespace that is being deleted accepts no events, which does no harm.
                if not error.is_transient:
                    log.debug("%s", error)
                    break
            await asyncio.sleep(backoff.next_delay())
        self._metrics.record_dropped_event()

    async def _publish(self, job: Json, event: PlannedEvent) -> None:
        metadata = job["metadata"]
        event_key = (str(metadata["uid"]), event)
        series = self._series.get(event_key)
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        if series is not None and time.monotonic() - series.at < _SERIES_SECONDS:
            patch = {"count": series.count + 1, "lastObservedTime": now}
            path = EVENTS.object_path(series.namespace, series.name)
            await self._api.merge_patch(path, {"series": patch}, _QUERY)
            series.count += 1
            series.at = time.monotonic()
            return
        regarded = metadata["name"] if event.pod is None else event.pod.name
        name = f"{regarded}.{uuid.uuid4().hex[:16]}"
        body = self._body(job, event, name, now)
        await self._api.create(
            EVENTS.collection_path(metadata["namespace"]), body, _QUERY, accept=METADATA_ONLY
        )
        self._series[event_key] = _EventSeries(name, metadata["namespace"], 1, time.monotonic())
        while len(self._series) > _MAX_SERIES:
            self._series.popitem(last=False)

    def _body(self, job: Json, event: PlannedEvent, name: str, now: str) -> dict[str, Any]:
        metadata = job["metadata"]
        about_job = {
            "apiVersion": job.get("apiVersion") or "kubealign.dev/v1alpha1",
            "kind": JOBS.kind,
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
        }
        about_pod = event.pod and {
            "apiVersion": "v1",
            "kind": PODS.kind,
            "namespace": metadata["namespace"],
            "name": event.pod.name,
            "uid": event.pod.uid,
        }
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": metadata["namespace"]},
            "eventTime": now,
            "reportingController": EVENT_CONTROLLER,
            "reportingInstance": self._instance[:128],
            "action": "Reconcile",
            "type": str(event.type),
            "reason": event.reason,
            "note": _truncate(event.message),
            "regarding": about_pod or about_job,
            **({"related": about_job} if about_pod else {}),
        }


def _truncate(note: str) -> str:
    encoded = note.encode()
    if len(encoded) <= _NOTE_BYTES:
        return note
    return encoded[: _NOTE_BYTES - 3].decode(errors="ignore") + "..."
