"""Metrics of the jobs' lifecycle by namespace: phases, restarts by cause, waits and outcomes.

The page that shows them needs no authentication: namespaces are labels, names of jobs are not.
"""

import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from kubealign.spec.status import JobPhase
from kubealign_operator.kube_views.lenient_json import get_path, integer, items, number, text, timestamp
from kubealign_operator.planner.plan import DEPENDENCIES_READY, FAILED, READY, SUSPENDED, PlannedEvent

#: Namespaces and phases of all jobs; the phase is empty before the first status.
JobPhases = Callable[[], Iterable[tuple[str, str]]]

#: Namespace and GPUs of pods.
PodGpus = Callable[[], Iterable[tuple[str, int]]]

_WAIT_BUCKETS = (1, 5, 15, 30, 60, 120, 300, 600, 1800, 3600, 14400, 86400)
#: Label of a job without a status.
_UNSEEN = "Unseen"
_PHASES = (*(phase.value for phase in JobPhase), _UNSEEN)
_RESTARTED = "Restarted"
#: Reasons of the condition Ready that are causes of a restart; any other one counts as "Other".
RESTART_CAUSES = frozenset(
    {"Crashed", "OutOfMemory", "StorageFull", "Evicted", "NodeLost", "Lost", "Disrupted"}
)
_OTHER = "Other"
#: Seconds for which the series of a namespace outlive its last job: a job that is deleted as soon as it has
#: ended is still counted by a scrape.
NAMESPACE_SECONDS = 3600.0


class LifecycleMetrics:
    """Series by namespace. They are removed an hour after the last job of the namespace."""

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_seen: dict[str, float] = {}
        #: Namespaces that have jobs.
        self._namespaces: set[str] = set()
        self._jobs = Gauge("kubealign_jobs", "Jobs by phase.", ("namespace", "phase"), registry=registry)
        self._gpus = Gauge(
            "kubealign_operator_gpus",
            "GPUs in the limits of pods that have a node and have not ended.",
            ("namespace",),
            registry=registry,
        )
        self._restarts = Counter(
            "kubealign_operator_job_restarts",
            "Restarts of processes and of groups of ranks, by cause.",
            ("namespace", "cause"),
            registry=registry,
        )
        self._finished = Counter(
            "kubealign_operator_jobs_finished",
            "Jobs that succeeded or failed; the reason of a success is empty.",
            ("namespace", "phase", "reason"),
            registry=registry,
        )
        self._queue_seconds = Histogram(
            "kubealign_operator_job_queue_seconds",
            "Time for which the pods of a new job waited for a queue or for nodes before it ran.",
            ("namespace",),
            buckets=_WAIT_BUCKETS,
            registry=registry,
        )
        self._start_seconds = Histogram(
            "kubealign_operator_job_start_seconds",
            "Time from the creation of a job until it runs for the first time, its dependencies included.",
            ("namespace",),
            buckets=_WAIT_BUCKETS,
            registry=registry,
        )

    def count_jobs(self, jobs: Iterable[tuple[str, str]]) -> None:
        """Set the numbers of jobs, and remove the series of namespaces without any."""
        tally = Tally((namespace, phase or _UNSEEN) for namespace, phase in jobs)
        namespaces = {namespace for namespace, _ in tally}
        self._namespaces = namespaces
        self._jobs.clear()
        for namespace in namespaces:
            # Phases without jobs are 0: an increase from no series at all is invisible to Prometheus.
            for phase in _PHASES:
                self._jobs.labels(namespace, phase).set(tally[namespace, phase])
        now = self._clock()
        self._last_seen |= dict.fromkeys(namespaces, now)
        for namespace, seen in list(self._last_seen.items()):
            if now - seen > NAMESPACE_SECONDS:
                self._forget(namespace)

    def count_gpus(self, pods: Iterable[tuple[str, int]]) -> None:
        """Set the GPUs of the namespaces that have jobs, from the namespace and the GPUs of each pod.

        Call it after `count_jobs`: a namespace with jobs but without GPUs has 0.
        """
        tally = Tally(dict.fromkeys(self._namespaces, 0))
        for namespace, gpus in pods:
            tally[namespace] += gpus
        self._gpus.clear()
        for namespace, count in tally.items():
            self._gpus.labels(namespace).set(count)

    def record_status(
        self, job: Mapping[str, Any], status: Mapping[str, Any], events: Sequence[PlannedEvent]
    ) -> None:
        """Record a status that was written.

        Args:
            job: The job with its previous status.
            status: The new status.
            events: Events that belong to the new status.
        """
        namespace = text(get_path(job, "metadata", "namespace"))
        before, phase = text(get_path(job, "status", "phase")), text(status.get("phase"))
        self._last_seen[namespace] = self._clock()
        restarts = sum(event.reason == _RESTARTED for event in events)
        if restarts:
            self._restarts.labels(namespace, _restart_cause(status)).inc(restarts)
        if phase != before and phase in (JobPhase.SUCCEEDED, JobPhase.FAILED):
            reason = _condition(status, FAILED).get("reason") if phase == JobPhase.FAILED else ""
            self._finished.labels(namespace, phase, text(reason)).inc()
        if phase == JobPhase.RUNNING and phase != before and _is_first_start(status):
            self._record_waits(namespace, job, status)

    def _record_waits(self, namespace: str, job: Mapping[str, Any], status: Mapping[str, Any]) -> None:
        now = datetime.now(UTC)
        created = timestamp(get_path(job, "metadata", "creationTimestamp"))
        if created is not None:
            self._start_seconds.labels(namespace).observe(max(0.0, (now - created).total_seconds()))
        # From here on the job waits for its queue, which comes before startTime.
        ready_at = timestamp(_condition(status, DEPENDENCIES_READY).get("lastTransitionTime"))
        started, active = ready_at or timestamp(status.get("startTime")), timestamp(status.get("activeSince"))
        if started is not None and active is not None:
            # The clock of the active time stands still while pods wait.
            earlier = number(status.get("activeSeconds")) or 0.0
            waited = (active - started).total_seconds() - earlier
            self._queue_seconds.labels(namespace).observe(max(0.0, waited))

    def _forget(self, namespace: str) -> None:
        del self._last_seen[namespace]
        for metric in (self._restarts, self._finished, self._queue_seconds, self._start_seconds):
            metric.remove_by_labels({"namespace": namespace})


def _is_first_start(status: Mapping[str, Any]) -> bool:
    """Return False for a job that may have run before: suspended, retried, or with new credentials."""
    generation = integer(get_path(status, "credentials", "generation")) or 1
    return generation == 1 and status.get("retry") is None and not _condition(status, SUSPENDED)


def _restart_cause(status: Mapping[str, Any]) -> str:
    ready = _condition(status, READY)
    reason = text(ready.get("reason"))
    return reason if ready.get("status") == "False" and reason in RESTART_CAUSES else _OTHER


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return the condition of this type; empty: there is none."""
    return next((item for item in items(status.get("conditions")) if item.get("type") == kind), {})
