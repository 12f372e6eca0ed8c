"""Wires the components that run while a replica is the leader."""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

from kubealign.kube.connections import Connections
from kubealign.kube.reflector import Reflector, ReflectorOptions, Scope
from kubealign.kube.resources import JOBS, PODS
from kubealign_operator.controller.background import run_supervised
from kubealign_operator.controller.config import OperatorConfig
from kubealign_operator.controller.executor import PlanExecutor
from kubealign_operator.controller.kube.connection import operator_api
from kubealign_operator.controller.kube.events import EventRecorder
from kubealign_operator.controller.kube.ownership import JobKey
from kubealign_operator.controller.metrics import OperatorMetrics
from kubealign_operator.controller.platform_redis.progress import NoProgress, ProgressReader
from kubealign_operator.controller.platform_redis.quota import RedisQuotaGuard
from kubealign_operator.controller.platform_redis.server import PlatformRedis
from kubealign_operator.controller.platform_redis.users import RedisUserSync
from kubealign_operator.controller.reconciler import Reconciler
from kubealign_operator.controller.state.cache import JobStore, PodStore
from kubealign_operator.controller.state.cluster_state import ClusterState
from kubealign_operator.controller.state.create_errors import CreateErrors
from kubealign_operator.controller.state.kueue_objects import KueueObjects
from kubealign_operator.controller.state.owned_objects import OwnedObjects
from kubealign_operator.controller.state.start_turns import StartTurns
from kubealign_operator.controller.state.work_queue import WorkQueue
from kubealign_operator.kube_views.observed_job import ObservedState
from kubealign_operator.names import OWNED_SELECTOR
from kubealign_operator.planner.plan import ReconcilePlan
from kubealign_operator.planner.planner import plan_reconcile

log = logging.getLogger(__name__)

_SYNC_SECONDS = 120.0
# The pods of a job change in bursts: a burst causes one reconcile and one status patch.
_BATCH_SECONDS = 0.2


class SyncTimeout(Exception):
    """The initial lists did not arrive in time."""


class OperatorManager:
    """Components of a leading replica. `guard` is called before each write to the API server.

    Every coroutine that it returns runs until it is cancelled.
    """

    def __init__(
        self,
        config: OperatorConfig,
        connections: Connections,
        metrics: OperatorMetrics,
        instance: str,
        guard: Callable[[], None],
    ) -> None:
        self._config = config
        self._api = operator_api(connections, metrics, config.request_seconds, guard)
        self._metrics = metrics
        self._queue: WorkQueue[JobKey] = WorkQueue()
        start_turns = StartTurns(self._queue.add)
        jobs = JobStore(self._queue.add, start_turns.observe)
        pods = PodStore(lambda job: self._queue.add_after(job, _BATCH_SECONDS))
        self._recorder = EventRecorder(self._api, metrics, instance)
        self._redis: PlatformRedis | None = None
        self._users: RedisUserSync | None = None
        self._quota_guard: RedisQuotaGuard | None = None
        progress: ProgressReader | NoProgress = NoProgress()
        if config.redis is not None:
            self._redis = PlatformRedis(config.redis, config.platform.cluster_id)
            self._users = RedisUserSync(self._redis, self._api, jobs, metrics, config.namespaces)
            self._quota_guard = RedisQuotaGuard(
                self._redis, jobs, self._users, self._recorder.record, config.redis.quota
            )
            progress = ProgressReader(self._redis, jobs, self._queue.add, config.progress_seconds)
        owned_objects = OwnedObjects(self._api, config.resync_seconds)
        kueue = KueueObjects(self._queue.add, self._reconcile_all)
        self._state = ClusterState(jobs, pods, owned_objects, CreateErrors(), progress, kueue, start_turns)
        options = ReflectorOptions(
            config.resync_seconds,
            on_list=lambda resource: metrics.record_list(resource.plural),
            on_unreadable=lambda resource: metrics.record_unreadable(resource.plural),
        )
        self._reflectors = [
            Reflector(self._api, scope, store, options)
            for namespace in (config.namespaces or (None,))
            for scope, store in (
                (Scope(JOBS, namespace), jobs),
                (Scope(PODS, namespace, OWNED_SELECTOR), pods),
            )
        ]
        if config.platform.uses_kueue:
            scopes = kueue.scopes(config.namespaces or (None,))
            self._reflectors += [Reflector(self._api, scope, store, options) for scope, store in scopes]
        self._reconciler = self._make_reconciler()
        metrics.observe(jobs.phases, lambda: len(self._queue), pods.gpus)

    def watchers(self) -> Iterator[Coroutine[Any, Any, None]]:
        """Return the coroutines that fill the caches."""
        return (reflector.run() for reflector in self._reflectors)

    async def wait_for_sync(self) -> None:
        """Wait until every cache has received its first list.

        Raises:
            SyncTimeout: The lists did not arrive in time.
        """
        try:
            async with asyncio.timeout(_SYNC_SECONDS):
                for reflector in self._reflectors:
                    await reflector.synced.wait()
        except TimeoutError as error:
            missing = "; ".join(
                f"{reflector.scope.path}: {reflector.last_error or 'no answer'}"
                for reflector in self._reflectors
                if not reflector.synced.is_set()
            )
            raise SyncTimeout(f"waited {_SYNC_SECONDS:g} s for the first lists of {missing}") from error

    def workers(self) -> Iterator[Coroutine[Any, Any, None]]:
        """Yield the coroutines that reconcile; start them once the caches are synced.

        Jobs write what they like to Redis: what reads it is supervised, so that it cannot end the operator.
        """
        for _ in range(self._config.workers):
            yield self._reconciler.run_worker()
        yield self._recorder.run()
        yield self._resync_all()
        yield run_supervised("redis-progress", self._state.progress.run, self._metrics)
        if self._users is not None:
            yield run_supervised("redis-users", self._users.run, self._metrics)
        if self._quota_guard is not None:
            yield run_supervised("redis-quota", self._quota_guard.run, self._metrics)

    async def aclose(self) -> None:
        if self._redis is not None:
            await self._redis.aclose()

    def _make_reconciler(self) -> Reconciler:
        redis = self._config.redis
        # Kubernetes sets the variable in every container.
        platform = self._config.platform.platform(os.environ.get("KUBERNETES_SERVICE_HOST", ""))
        if redis is None:
            platform = replace(platform, redis_peers=None)
        executor = PlanExecutor(
            self._api,
            self._state,
            redis_ca=redis.ca_file.read_bytes() if redis is not None and redis.ca_file is not None else None,
            on_credentials_issued=self._users.on_credentials_issued
            if self._users is not None
            else lambda key, uid, password, generation: None,
            announce=self._recorder.record,
            on_status_written=self._metrics.lifecycle.record_status,
        )

        def planner(observed: ObservedState, now: datetime) -> ReconcilePlan:
            return plan_reconcile(observed, now, platform)

        return Reconciler(self._state, executor, planner, self._queue, self._metrics)

    def _reconcile_all(self) -> None:
        """Enqueue every job."""
        for key, _ in self._state.jobs.items():
            self._queue.add(key)

    async def _resync_all(self) -> None:
        """Enqueue every job periodically, independent of the watches, and forget deleted jobs."""
        while True:
            await asyncio.sleep(self._config.resync_seconds)
            present = {job.uid for _, job in self._state.jobs.items()}
            self._state.owned_objects.keep_only(present)
            self._state.create_errors.keep_only(present)
            self._reconcile_all()
