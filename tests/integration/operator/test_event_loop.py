"""The event loop runs while a plan is made, and its lag is measured."""

import asyncio
import threading
from contextlib import suppress
from datetime import datetime

from integration.kube.api_server import ScriptedServer, hangs
from kubealign.kube.api import allow_writes
from kubealign_operator.controller.executor import PlanExecutor
from kubealign_operator.controller.kube.connection import operator_api
from kubealign_operator.controller.kube.ownership import JobKey
from kubealign_operator.controller.loop_lag import measure_loop_lag
from kubealign_operator.controller.metrics import OperatorMetrics
from kubealign_operator.controller.platform_redis.progress import NoProgress
from kubealign_operator.controller.reconciler import Reconciler
from kubealign_operator.controller.state.cache import JobStore, PodStore
from kubealign_operator.controller.state.cluster_state import ClusterState
from kubealign_operator.controller.state.create_errors import CreateErrors
from kubealign_operator.controller.state.kueue_objects import KueueObjects
from kubealign_operator.controller.state.owned_objects import OwnedObjects
from kubealign_operator.controller.state.work_queue import WorkQueue
from kubealign_operator.kube_views.observed_job import ObservedState
from kubealign_operator.planner.plan import ReconcilePlan
from support.rendering.jobs import sft

_DEADLINE = 30.0


async def test_the_event_loop_runs_while_a_plan_is_made() -> None:
    loop, has_loop_run = asyncio.get_running_loop(), threading.Event()

    def planner(observed: ObservedState, now: datetime) -> ReconcilePlan:
        loop.call_soon_threadsafe(has_loop_run.set)
        assert has_loop_run.wait(_DEADLINE), "the event loop stood still"
        return ReconcilePlan(status={})

    async with ScriptedServer([hangs]) as connections:
        metrics = OperatorMetrics()
        api = operator_api(connections, metrics, 15, allow_writes)
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
        reconciler = Reconciler(state, executor, planner, WorkQueue(), metrics)
        assert await reconciler.reconcile(JobKey("team", "sft"))


async def test_the_lag_of_a_blocked_loop_is_recorded() -> None:
    metrics = OperatorMetrics()
    task = asyncio.create_task(measure_loop_lag(metrics, 0.01))
    await asyncio.sleep(0)
    threading.Event().wait(0.3)
    # The timer of the task was due first.
    await asyncio.sleep(0.02)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    lines = metrics.render().decode().splitlines()
    buckets = {
        line.split(" ")[0]: float(line.split(" ")[1])
        for line in lines
        if "loop_lag" in line and line[0] != "#"
    }
    name = "kubealign_operator_loop_lag_seconds"
    assert buckets[f'{name}_bucket{{le="+Inf"}}'] > buckets[f'{name}_bucket{{le="0.25"}}']
