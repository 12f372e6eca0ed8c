"""Reconciles one job: observe, plan, execute. Also contains the worker loop."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

from kubealign.errors import Unavailable
from kubealign.kube.errors import ApiStatusError
from kubealign.spec.status import JobPhase
from kubealign_operator.controller.executor import PlanExecutor, StaleObservation
from kubealign_operator.controller.kube.leader_election import NotLeader
from kubealign_operator.controller.kube.ownership import JobKey
from kubealign_operator.controller.metrics import OperatorMetrics
from kubealign_operator.controller.platform_redis.progress import ACTIVE_PHASES
from kubealign_operator.controller.state.cache import WatchedJob
from kubealign_operator.controller.state.cluster_state import ClusterState
from kubealign_operator.controller.state.dependency_cycles import find_cycle
from kubealign_operator.controller.state.job_views import dependency_view
from kubealign_operator.controller.state.work_queue import WorkQueue
from kubealign_operator.kube_views.observed_job import ObservedState, PodView
from kubealign_operator.kube_views.pod_state import attempt_of
from kubealign_operator.names import DRIVER, PROCESS_LABEL
from kubealign_operator.planner.plan import ReconcilePlan

log = logging.getLogger(__name__)

#: Returns the plan for the observed state at a point in time.
Planner = Callable[[ObservedState, datetime], ReconcilePlan]

# The watch's echo of own writes is no news: reconcile once more after a while, together with the cluster's
# reaction to the writes.
_REQUEUE_AFTER_WRITE_SECONDS = 1.0


class Reconciler:
    """A level-triggered reconciler: it works from the current state; losing its caches only costs calls."""

    def __init__(
        self,
        state: ClusterState,
        executor: PlanExecutor,
        planner: Planner,
        queue: WorkQueue[JobKey],
        metrics: OperatorMetrics,
    ) -> None:
        self._state = state
        self._executor = executor
        self._plan = planner
        self._queue = queue
        self._metrics = metrics
        # One thread: several would compete with the event loop for the interpreter.
        self._planning = ThreadPoolExecutor(1, thread_name_prefix="planner")

    async def run_worker(self) -> None:
        """Run one worker until cancelled."""
        while True:
            key = await self._queue.get()
            started = time.monotonic()
            try:
                await self._reconcile_guarded(key)
            finally:
                self._queue.done(key)
                self._metrics.record_reconcile(time.monotonic() - started)

    async def _reconcile_guarded(self, key: JobKey) -> None:
        """Reconcile a job. A failure delays this job and does not affect other jobs."""
        try:
            is_settled = await self.reconcile(key)
        except StaleObservation as error:
            log.debug("%s changed during the reconcile: %s", key, error)
            self._retry_after_error(key, "Stale")
        except Unavailable as error:
            log.warning("%s: %s", key, error, extra={"job": str(key)})
            self._retry_after_error(key, "ApiAway")
        except ApiStatusError as error:
            level = logging.WARNING if error.is_transient else logging.ERROR
            log.log(level, "%s: %s", key, error, extra={"job": str(key)})
            if not error.is_transient:
                self._state.start_turns.exclude(key)
            self._retry_after_error(key, error.reason, error.retry_after or 0.0)
        except NotLeader:
            raise
        except Exception:
            log.exception("%s: internal error of the operator", key, extra={"job": str(key)})
            self._state.start_turns.exclude(key)
            self._retry_after_error(key, "Fault")
        else:
            if is_settled:
                self._queue.forget(key)
            else:
                self._queue.retry(key)

    async def reconcile(self, key: JobKey) -> bool:
        """Reconcile a job once.

        Returns:
            False when a creation was refused and must be retried with backoff.

        Raises:
            StaleObservation: The job has changed since it was observed.
            ApiStatusError: The API server refused a call.
            Unavailable: The API server did not answer in time.
        """
        job = self._state.jobs.get(key)
        if job is None or job.is_deleting:
            return True
        observed = await self._observe(key, job)
        if self._state.jobs.get(key) is not job:
            raise StaleObservation("the job changed while its objects were read")
        # In a thread: the event loop renews the lease while the pods of a large job are rendered.
        loop = asyncio.get_running_loop()
        plan = await loop.run_in_executor(self._planning, self._plan, observed, datetime.now(UTC))
        if self._state.jobs.get(key) is not job:
            raise StaleObservation("the job changed while the reconcile was planned")
        if not self._state.start_turns.claim(key, job.uid, plan.status):
            raise StaleObservation("another job has begun its turn to start meanwhile")
        result = await self._executor.execute(key, job, plan)
        self._state.start_turns.confirm(key)
        if self._state.create_errors.replace(job.uid, result.create_errors):
            # The refusal, or its end, must be shown in the status at once.
            self._queue.add(key)
        elif result.changed:
            self._queue.add_after(key, _REQUEUE_AFTER_WRITE_SECONDS)
        if plan.requeue_after is not None:
            self._queue.add_after(key, max(0.0, plan.requeue_after))
        return not result.create_errors

    async def _observe(self, key: JobKey, tracked: WatchedJob) -> ObservedState:
        needed_jobs = {
            name: self._state.jobs.get(JobKey(key.namespace, name)) for name in tracked.dependencies
        }
        objects = await self._state.owned_objects.existing(key, tracked)
        pods = self._state.pods.of_job(key)
        if tracked.phase in ACTIVE_PHASES and has_driver_finished(pods, tracked.uid):
            await self._state.progress.refresh(key, tracked.uid)
        return ObservedState(
            job=tracked.document(),
            unreadable=tracked.unreadable,
            pods=self._state.pods.of_job(key),
            objects=objects,
            create_errors=self._state.create_errors.get(tracked.uid),
            dependencies={
                name: dependency_view(dependency.document()) if dependency else None
                for name, dependency in needed_jobs.items()
            },
            dependency_cycle=find_cycle(
                key.name, lambda name: self._pending_dependencies(JobKey(key.namespace, name))
            ),
            progress=self._state.progress.get(tracked.uid),
            starting_jobs=self._state.start_turns.others(key),
            kueue=self._state.kueue.view(key),
        )

    def _pending_dependencies(self, key: JobKey) -> frozenset[str]:
        """Return the unfinished dependencies of a job."""
        job = self._state.jobs.get(key)
        return frozenset() if job is None or job.phase == JobPhase.SUCCEEDED else frozenset(job.dependencies)

    def _retry_after_error(self, key: JobKey, reason: str, at_least: float = 0.0) -> None:
        self._metrics.record_error(reason)
        self._queue.retry(key, at_least)


def has_driver_finished(pods: Iterable[PodView], uid: str) -> bool:
    """Return True when the newest driver of a job has finished: an earlier one may be kept for its log."""
    drivers = [pod for pod in pods if pod.owner_uid == uid and pod.labels.get(PROCESS_LABEL) == DRIVER]
    return bool(drivers) and max(drivers, key=attempt_of).phase in ("Succeeded", "Failed")
