"""Events about jobs and their pods, as the recorder sends them."""

import asyncio
from typing import Any

from aiohttp import web

from integration.kube.api_server import Json, ScriptedServer
from kubealign.kube.api import allow_writes
from kubealign_operator.controller.kube.connection import operator_api
from kubealign_operator.controller.kube.events import EventRecorder
from kubealign_operator.controller.metrics import OperatorMetrics
from kubealign_operator.planner.plan import KubeEventType, PlannedEvent, PodReference
from support.rendering.jobs import UID, sft

_SECONDS = 30.0
_JOB_EVENT = PlannedEvent(KubeEventType.WARNING, "Restarted", "trainer-1 ended with code 1")


class _Events:
    """Accepts events. `full` is set once `expected` requests have been answered."""

    def __init__(self, expected: int) -> None:
        self.created: list[Json] = []
        self.patched: list[Json] = []
        self.full = asyncio.Event()
        self._expected = expected

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        body: Any = await request.json()
        (self.created if request.method == "POST" else self.patched).append(body)
        if len(self.created) + len(self.patched) == self._expected:
            self.full.set()
        return web.json_response({"kind": "PartialObjectMetadata", "metadata": {"name": "x"}})


def _about(number: int) -> PlannedEvent:
    pod = PodReference(f"sft-rollout-{number}-0", f"uid-{number}")
    return PlannedEvent(_JOB_EVENT.type, _JOB_EVENT.reason, _JOB_EVENT.message, pod)


async def _send(server: _Events, *records: tuple[PlannedEvent, ...]) -> str:
    """Record the events and send them. Return the metrics page."""
    metrics = OperatorMetrics()
    async with ScriptedServer([server]) as connections:
        api = operator_api(connections, metrics, 15, allow_writes)
        recorder = EventRecorder(api, metrics, "operator-0")
        for events in records:
            recorder.record(sft(), events)
        sending = asyncio.create_task(recorder.run())
        try:
            await asyncio.wait_for(server.full.wait(), _SECONDS)
        finally:
            sending.cancel()
            await asyncio.wait([sending])
    return metrics.render().decode()


async def test_an_event_about_a_pod_names_the_pod_and_its_job() -> None:
    server = _Events(expected=2)
    await _send(server, (_JOB_EVENT, _about(1)))
    of_job, of_pod = server.created
    assert (of_job["regarding"]["kind"], of_job["regarding"]["uid"]) == ("AlignmentJob", UID)
    assert "related" not in of_job
    assert of_pod["regarding"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "team",
        "name": "sft-rollout-1-0",
        "uid": "uid-1",
    }
    assert of_pod["related"] == of_job["regarding"]
    assert of_pod["metadata"]["name"].startswith("sft-rollout-1-0.")
    assert (of_pod["reason"], of_pod["note"]) == (of_job["reason"], of_job["note"])


async def test_a_repeated_event_about_a_pod_is_counted() -> None:
    server = _Events(expected=3)
    await _send(server, (_about(1), _about(2)), (_about(1),))
    assert len(server.created) == 2
    assert [body["series"]["count"] for body in server.patched] == [2]


async def test_events_about_pods_displace_none_about_jobs() -> None:
    last = PlannedEvent(KubeEventType.NORMAL, "Running", "the job is Running")
    server = _Events(expected=1001)
    page = await _send(server, (_JOB_EVENT, *map(_about, range(1500)), last))
    kinds = [body["regarding"]["kind"] for body in server.created]
    assert kinds == ["AlignmentJob", *["Pod"] * 999, "AlignmentJob"]
    assert "kubealign_operator_events_dropped_total 501.0" in page
