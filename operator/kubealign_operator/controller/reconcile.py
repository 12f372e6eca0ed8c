"""Reconciles one job: observe, plan, execute. Also contains the worker loop."""

import logging
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from kubealign.roles import Process
from kubealign.spec.status import JobPhase
from kubealign_operator.controller.acting import Actor, Stale
from kubealign_operator.controller.cache import HeldJob, Jobs, Pods
from kubealign_operator.controller.circles import circle
from kubealign_operator.controller.existence import Existence
from kubealign_operator.controller.failures import ApiAway, ApiFailure, NotLeading
from kubealign_operator.controller.metrics import Metrics
from kubealign_operator.controller.progress import SPEAKING, NoProgress, ProgressReader
from kubealign_operator.controller.queue import WorkQueue
from kubealign_operator.controller.refusals import Refusals
from kubealign_operator.controller.resources import Key
from kubealign_operator.controller.views import job_view
from kubealign_operator.render.names import DRIVER, PROCESS_LABEL
from kubealign_operator.render.observed import Observed, PodView
from kubealign_operator.render.rendered import Rendered

log = logging.getLogger(__name__)

#: Returns the plan for the observed state at a point in time.
Render = Callable[[Sequence[Process], Observed, datetime], Rendered]

# The watch's echo of own writes is no news: reconcile once more after a while, together with the cluster's
# reaction to the writes.
_SETTLE_SECONDS = 1.0


class Reconciler:
    """A level-triggered reconciler: it works from the current state; losing its caches only costs calls."""

    def __init__(
        self,
        jobs: Jobs,
        pods: Pods,
        existence: Existence,
        refusals: Refusals,
        progress: NoProgress | ProgressReader,
        actor: Actor,
        render: Render,
        queue: WorkQueue[Key],
        metrics: Metrics,
    ) -> None:
        self._jobs = jobs
        self._pods = pods
        self._existence = existence
        self._refusals = refusals
        self._progress = progress
        self._actor = actor
        self._render = render
        self._queue = queue
        self._metrics = metrics

    async def work(self) -> None:
        """Run one worker until cancelled."""
        while True:
            key = await self._queue.get()
            started = time.monotonic()
            try:
                await self._look(key)
            finally:
                self._queue.done(key)
                self._metrics.reconciled(time.monotonic() - started)

    async def _look(self, key: Key) -> None:
        """Reconcile a job. A failure delays this job and does not affect other jobs."""
        try:
            is_settled = await self.reconcile(key)
        except Stale as error:
            log.debug("%s changed during the reconcile: %s", key, error)
            self._failed(key, "Stale")
        except ApiAway as error:
            log.warning("%s: %s", key, error, extra={"job": str(key)})
            self._failed(key, "ApiAway")
        except ApiFailure as error:
            level = logging.WARNING if error.passing else logging.ERROR
            log.log(level, "%s: %s", key, error, extra={"job": str(key)})
            self._failed(key, error.reason, error.retry_after or 0.0)
        except NotLeading:
            raise
        except Exception:
            log.exception("%s: internal error of the operator", key, extra={"job": str(key)})
            self._failed(key, "Fault")
        else:
            if is_settled:
                self._queue.forget(key)
            else:
                self._queue.retry(key)

    async def reconcile(self, key: Key) -> bool:
        """Reconcile a job once.

        Returns:
            False when a creation was refused and must be retried with backoff.

        Raises:
            StaleObservation: The job has changed since it was observed.
            ApiStatusError: The API server refused a call.
            ApiUnavailable: The API server did not answer in time.
        """
        job = self._jobs.get(key)
        if job is None or job.deleting:
            return True
        observed = await self._observe(key, job)
        if self._jobs.get(key) is not job:
            raise Stale("the job changed while its objects were read")
        plan = self._render(job.processes, observed, datetime.now(UTC))
        result = await self._actor.act(key, job, plan)
        if self._refusals.replace(job.uid, result.refused):
            # The refusal, or its end, must be shown in the status at once.
            self._queue.add(key)
        elif result.wrote:
            self._queue.add_after(key, _SETTLE_SECONDS)
        if plan.again_after is not None:
            self._queue.add_after(key, max(0.0, plan.again_after))
        return not result.refused

    async def _observe(self, key: Key, tracked: HeldJob) -> Observed:
        needed_jobs = {name: self._jobs.get(Key(key.namespace, name)) for name in tracked.needs}
        objects = await self._existence.of(key, tracked)
        if tracked.phase in SPEAKING and any(_ended_driver(pod) for pod in self._pods.of(key)):
            await self._progress.refresh(key, tracked.uid)
        return Observed(
            job=tracked.job,
            pods=self._pods.of(key),
            objects=objects,
            refusals=self._refusals.of(tracked.uid),
            dependencies={name: job_view(dependency.job) if dependency else None for name, dependency in needed_jobs.items()},
            circle=circle(key.name, lambda name: self._awaited(Key(key.namespace, name))),
            progress=self._progress.of(tracked.uid),
        )

    def _awaited(self, key: Key) -> frozenset[str]:
        """Return the unfinished dependencies of a job."""
        job = self._jobs.get(key)
        return frozenset() if job is None or job.phase == JobPhase.SUCCEEDED else frozenset(job.needs)

    def _failed(self, key: Key, reason: str, at_least: float = 0.0) -> None:
        self._metrics.failed(reason)
        self._queue.retry(key, at_least)


def _ended_driver(pod: PodView) -> bool:
    return pod.labels.get(PROCESS_LABEL) == DRIVER and pod.phase in ("Succeeded", "Failed")
