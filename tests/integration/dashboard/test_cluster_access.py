"""The cluster's dashboard mirrors jobs, and reports an API server that is unavailable."""

import asyncio
from typing import Any

from aiohttp import web

from integration.kube.api_server import Answer, ScriptedServer, next_of, refuses, says, streams
from kubealign.client.records import JobRef, ListQuery
from kubealign.kube.api import KubernetesApi
from kubealign_dashboard.cluster.access import ClusterAccess
from kubealign_dashboard.cluster.redis_telemetry import NoTelemetry


def _job(name: str, version: int) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "team", "uid": name, "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {"algorithm": {"sft": {}}}, "status": {"phase": "Running"}}


async def _until_jobs(access: ClusterAccess, count: int) -> None:
    async with asyncio.timeout(20):
        async for _ in access.cache.changes():
            if len(access.cache) == count:
                return


async def test_jobs_are_mirrored_and_readiness_names_the_error() -> None:
    # The list has an object without a name.
    unreadable = {"metadata": {"uid": "none", "resourceVersion": "4"}}
    listed = says({"metadata": {"resourceVersion": "5"}, "items": [unreadable, _job("one", 5)]})
    added = streams({"type": "ADDED", "object": _job("two", 6)}, stays=True)
    may_list = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        if not may_list.is_set():
            return await refuses(503, "ServiceUnavailable")(request)
        return await next_of(answers)(request)

    answers: list[Answer] = [listed, added]
    server = ScriptedServer([answer])
    async with server as connections:
        access = ClusterAccess(KubernetesApi(connections, "team"), NoTelemetry(), ["team"])
        async with access:
            assert access.not_ready_reason() == "the jobs are being listed"
            assert not access.watch_error()
            async with asyncio.timeout(20):
                while not access.watch_error():  # noqa: ASYNC110 - there is no event for an error
                    await asyncio.sleep(0.01)
            assert "could not list alignmentjobs in namespace team: 503" in access.watch_error()
            assert access.not_ready_reason() == access.watch_error()
            may_list.set()
            await _until_jobs(access, 2)
            assert access.not_ready_reason() is None
            assert not access.watch_error()
            assert access.unreadable_objects.labels("alignmentjobs")._value.get() == 1
            page = await access.reader.list(ListQuery("team", sort="name"))
            assert [record.ref for record in page.jobs] == [JobRef("team", "one"), JobRef("team", "two")]
    assert "limit=200" in server.asked[0][1]
    assert server.asked[0][1].startswith("/apis/kubealign.dev/v1alpha1/namespaces/team/alignmentjobs?")
