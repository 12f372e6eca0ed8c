"""A leading replica against a small API server: the objects of a job, its status and its events."""

import asyncio
import json
from collections import defaultdict
from contextlib import aclosing
from typing import Any

import pytest
from aiohttp import web

from integration.kube.api_server import Json, ScriptedServer, refuses, streams
from kubealign.kube.api import allow_writes
from kubealign.kube.errors import ApiCall
from kubealign.kube.merge_patch import apply_merge_patch
from kubealign_operator.controller.config import OperatorConfig, RedisConfig
from kubealign_operator.controller.manager import OperatorManager
from kubealign_operator.controller.metrics import OperatorMetrics
from kubealign_operator.controller.platform_redis.progress import ProgressReader
from kubealign_operator.controller.platform_redis.quota import RedisQuotaGuard
from kubealign_operator.controller.platform_redis.users import RedisUserSync
from support.rendering.jobs import sft

_CONFIG = OperatorConfig.model_validate({"platform": {"image": "none", "redisHost": "none"}, "workers": 2})


class Objects:
    """Stores objects by resource and name, as an API server does; a watch stays silent."""

    def __init__(self, job: Json) -> None:
        self.objects: defaultdict[str, dict[str, Json]] = defaultdict(dict)
        self.objects["alignmentjobs"][job["metadata"]["name"]] = job
        self.field_managers: set[str | None] = set()
        #: Media types of created objects' responses.
        self.accepted: dict[str, str] = {}
        self.has_pods_and_event = asyncio.Event()
        self._version = 100

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            return await streams(stays=True)(request)
        call = ApiCall("", request.path)
        stored, name = self.objects[call.resource], call.target[1]
        if request.method == "GET" and not name:
            metadata = {"resourceVersion": str(self._version)}
            return web.json_response({"metadata": metadata, "items": list(stored.values())})
        if request.method == "GET":
            return (
                web.json_response(stored[name]) if name in stored else await refuses(404, "NotFound")(request)
            )
        body: Any = json.loads(await request.text())
        self.field_managers.add(request.query.get("fieldManager"))
        self._version += 1
        if request.method == "PATCH":
            body = apply_merge_patch(stored[name], body)
        else:
            name = body["metadata"]["name"]
            body["metadata"] |= {"namespace": call.namespace, "uid": f"uid-{self._version}"}
            self.accepted[call.resource] = request.headers["Accept"]
        body["metadata"]["resourceVersion"] = str(self._version)
        stored[name] = body
        if self.objects["pods"] and self.objects["events"]:
            self.has_pods_and_event.set()
        return web.json_response(body)


async def test_a_new_job_gets_its_objects_status_and_events() -> None:
    server, metrics = Objects(sft()), OperatorMetrics()
    async with ScriptedServer([server]) as connections:
        manager = OperatorManager(_CONFIG, connections, metrics, "replica", allow_writes)
        async with aclosing(manager):
            tasks = [asyncio.create_task(watcher) for watcher in manager.watchers()]
            await manager.wait_for_sync()
            tasks += [asyncio.create_task(worker) for worker in manager.workers()]
            async with asyncio.timeout(20):
                await server.has_pods_and_event.wait()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
    assert server.objects["secrets"].keys() == {"sft-credentials"}
    assert server.objects["configmaps"].keys() == {"sft-document"}
    assert server.objects["services"].keys() == server.objects["networkpolicies"].keys() == {"sft-peers"}
    assert server.objects["alignmentjobs"]["sft"]["status"]["phase"]
    assert server.field_managers == {"kubealign"}
    # The operator stores its pods; of all other objects only the existence matters.
    assert server.accepted["pods"] == "application/json"
    assert {media for resource, media in server.accepted.items() if resource != "pods"} == {
        "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
    }
    text = metrics.render().decode()
    assert 'kubealign_operator_lists_total{resource="alignmentjobs"} 1.0' in text
    assert 'kubealign_operator_lists_total{resource="pods"} 1.0' in text
    assert 'kubealign_operator_api_calls_total{code="200",resource="alignmentjobs",verb="patch"}' in text


async def test_a_task_for_redis_that_fails_does_not_end_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a job gets its pods while every task for Redis fails at every start."""
    failing = {"redis-progress": ProgressReader, "redis-users": RedisUserSync, "redis-quota": RedisQuotaGuard}
    has_failed = {task: asyncio.Event() for task in failing}
    for task, component in failing.items():

        async def run(self: object, task: str = task) -> None:
            has_failed[task].set()
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "written by a job")

        monkeypatch.setattr(component, "run", run)
    config = _CONFIG.model_copy(update={"redis": RedisConfig(host="redis.invalid")})
    server, metrics = Objects(sft()), OperatorMetrics()
    async with ScriptedServer([server]) as connections:
        manager = OperatorManager(config, connections, metrics, "replica", allow_writes)
        async with aclosing(manager), asyncio.TaskGroup() as group:
            tasks = [group.create_task(watcher) for watcher in manager.watchers()]
            await manager.wait_for_sync()
            tasks += [group.create_task(worker) for worker in manager.workers()]
            async with asyncio.timeout(20):
                await server.has_pods_and_event.wait()
                for event in has_failed.values():
                    await event.wait()
            for task in tasks:
                task.cancel()
    for name in failing:
        assert f'kubealign_operator_background_failures_total{{task="{name}"}}'.encode() in metrics.render()
