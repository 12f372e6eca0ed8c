"""The executor creates pods with a slow start, and has a bounded number of requests in flight."""

import asyncio
from collections import Counter
from typing import Any

from aiohttp import web

from integration.kube.api_server import Json, ScriptedServer, refuses
from kubealign.kube.api import allow_writes
from kubealign_operator.controller.executor import MAX_WRITES_IN_FLIGHT, ExecutionResult, PlanExecutor
from kubealign_operator.controller.kube.connection import operator_api
from kubealign_operator.controller.kube.ownership import JobKey
from kubealign_operator.controller.metrics import OperatorMetrics
from kubealign_operator.controller.platform_redis.progress import NoProgress
from kubealign_operator.controller.state.cache import JobStore, PodStore
from kubealign_operator.controller.state.cluster_state import ClusterState
from kubealign_operator.controller.state.create_errors import CreateErrors
from kubealign_operator.controller.state.kueue_objects import KueueObjects
from kubealign_operator.controller.state.owned_objects import OwnedObjects
from kubealign_operator.names import GROUP_LABEL, JOB_LABEL
from kubealign_operator.planner.plan import PodDeletion, PodStop, ReconcilePlan
from support.rendering.jobs import sft

_KEY = JobKey("team", "sft")


class _Quota:
    """Creates pods until `room` is used up. `batches`: pods of each group that were asked for together."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.asked: Counter[str] = Counter()

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        pod: Any = await request.json()
        self.asked[pod["metadata"]["labels"][GROUP_LABEL]] += 1
        if self.room == 0:
            return await refuses(403, "Forbidden")(request)
        self.room -= 1
        pod["metadata"] |= {"uid": pod["metadata"]["name"], "resourceVersion": "9"}
        return web.json_response(pod)


def _pod(group: str, number: int) -> Json:
    labels = {GROUP_LABEL: group, JOB_LABEL: "sft"}
    return {"kind": "Pod", "metadata": {"name": f"{group}-{number}", "namespace": "team", "labels": labels}}


class _SlowServer:
    """Answers each request after a while. `most`: requests that waited for an answer at the same time."""

    def __init__(self) -> None:
        self.answered = self.most = self._waiting = 0

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self._waiting += 1
        self.most = max(self.most, self._waiting)
        await asyncio.sleep(0.01)
        self._waiting -= 1
        self.answered += 1
        name = request.path.rpartition("/")[2]
        pod = {
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "team", "uid": name, "resourceVersion": "9"},
        }
        return web.json_response(pod)


async def _execute(quota: _Quota, pods: list[Json]) -> ExecutionResult:
    return await _execute_plan(quota, ReconcilePlan(status={}, create=tuple(pods)))


async def _execute_plan(answer: _Quota | _SlowServer, plan: ReconcilePlan) -> ExecutionResult:
    async with ScriptedServer([answer]) as connections:
        api = operator_api(connections, OperatorMetrics(), 15, allow_writes)
        jobs = JobStore(lambda key: None)
        jobs.put(sft())
        state = ClusterState(
            jobs,
            PodStore(lambda key: None),
            OwnedObjects(api, 600),
            CreateErrors(),
            NoProgress(),
            KueueObjects(lambda key: None, lambda: None),
        )
        executor = PlanExecutor(
            api, state, redis_ca=None, on_credentials_issued=lambda *_: None, announce=lambda *_: None
        )
        job = jobs.get(_KEY)
        assert job is not None
        return await executor.execute(_KEY, job, plan)


async def test_a_full_quota_costs_one_request_for_each_group() -> None:
    quota = _Quota(room=0)
    pods = [_pod("rollout", number) for number in range(300)] + [_pod("driver", 0)]
    result = await _execute(quota, pods)
    assert quota.asked == {"rollout": 1, "driver": 1}
    assert set(result.create_errors) == {"rollout-0", "driver-0"}
    assert "Forbidden by the test" in result.create_errors["rollout-0"]


async def test_the_batches_double_until_the_first_refusal() -> None:
    quota = _Quota(room=10)
    result = await _execute(quota, [_pod("rollout", number) for number in range(300)])
    # Batches of 1, 2, 4 and 8, of which the last one has five refusals.
    assert quota.asked == {"rollout": 15}
    assert len(result.create_errors) == 5
    assert result.changed


async def test_without_a_refusal_every_pod_is_created() -> None:
    quota = _Quota(room=300)
    result = await _execute(quota, [_pod("rollout", number) for number in range(300)])
    assert (quota.asked, result.create_errors) == ({"rollout": 300}, {})


async def test_the_pods_of_a_large_job_are_stopped_and_deleted_a_few_at_a_time() -> None:
    server, names = _SlowServer(), [f"rollout-{number}" for number in range(200)]
    await _execute_plan(
        server,
        ReconcilePlan(
            status={},
            stop=tuple(PodStop(name, name) for name in names),
            delete=tuple(PodDeletion(name, name, None) for name in names),
        ),
    )
    assert (server.answered, server.most) == (400, MAX_WRITES_IN_FLIGHT)
