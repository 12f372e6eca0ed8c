"""Prometheus metrics of the operator."""

import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.process_collector import ProcessCollector

from kubealign_operator.controller.lifecycle_metrics import JobPhases, LifecycleMetrics, PodGpus

_CALL_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15)
_RECONCILE_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15)
_LAG_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


# Counting the phases visits every job: a client that scrapes in a loop must not occupy the event loop.
_PHASES_SECONDS = 1.0


class OperatorMetrics:
    """One registry. The queue depth is read at each scrape, the phases at most once a second."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._calls = Counter(
            "kubealign_operator_api_calls",
            "Calls of the Kubernetes API; code none: no complete answer.",
            ("verb", "resource", "code"),
            registry=self._registry,
        )
        self._call_seconds = Histogram(
            "kubealign_operator_api_seconds",
            "Duration of a call until its answer; of a watch until its end.",
            ("verb",),
            buckets=_CALL_BUCKETS,
            registry=self._registry,
        )
        self._reconcile_seconds = Histogram(
            "kubealign_operator_reconcile_seconds",
            "Duration of one reconcile of a job.",
            buckets=_RECONCILE_BUCKETS,
            registry=self._registry,
        )
        self._loop_lag = Histogram(
            "kubealign_operator_loop_lag_seconds",
            "Time by which the event loop is late.",
            buckets=_LAG_BUCKETS,
            registry=self._registry,
        )
        self._errors = Counter(
            "kubealign_operator_reconcile_errors",
            "Reconciles that failed, by reason.",
            ("reason",),
            registry=self._registry,
        )
        self._depth = Gauge(
            "kubealign_operator_queue_depth", "Jobs that wait to be reconciled.", registry=self._registry
        )
        self._leader = Gauge(
            "kubealign_operator_leader", "1: this replica is the leader.", registry=self._registry
        )
        self._redis = Gauge(
            "kubealign_operator_redis_up", "1: the last call to Redis succeeded.", registry=self._registry
        )
        self._relists = Counter(
            "kubealign_operator_lists",
            "Full lists of the API server, by resource.",
            ("resource",),
            registry=self._registry,
        )
        self._background_failures = Counter(
            "kubealign_operator_background_failures",
            "Failures of the tasks that do not end the operator, by task.",
            ("task",),
            registry=self._registry,
        )
        self._unreadable = Counter(
            "kubealign_operator_unreadable_objects",
            "Objects of lists and watches that were not readable, by resource.",
            ("resource",),
            registry=self._registry,
        )
        self._events_dropped = Counter(
            "kubealign_operator_events_dropped",
            "Kubernetes events that were dropped.",
            registry=self._registry,
        )
        #: Metrics of the jobs' lifecycle, by namespace.
        self.lifecycle = LifecycleMetrics(self._registry, clock)
        self._phases: JobPhases = tuple
        self._gpus: PodGpus = tuple
        self._clock = clock
        self._phases_due = clock()

    def observe(self, phases: JobPhases, depth: Callable[[], float], gpus: PodGpus = tuple) -> None:
        """Set the sources of the job phases, the queue depth and the GPUs, which are read for scrapes."""
        self._phases = phases
        self._gpus = gpus
        self._depth.set_function(depth)

    def record_api_call(self, verb: str, resource: str, code: str, seconds: float) -> None:
        self._calls.labels(verb, resource, code).inc()
        self._call_seconds.labels(verb).observe(seconds)

    def record_reconcile(self, seconds: float) -> None:
        self._reconcile_seconds.observe(seconds)

    def record_loop_lag(self, seconds: float) -> None:
        self._loop_lag.observe(seconds)

    def record_error(self, reason: str) -> None:
        self._errors.labels(reason).inc()

    def record_list(self, resource: str) -> None:
        self._relists.labels(resource).inc()

    def record_background_failure(self, task: str) -> None:
        self._background_failures.labels(task).inc()

    def record_unreadable(self, resource: str) -> None:
        self._unreadable.labels(resource).inc()

    def record_dropped_event(self) -> None:
        self._events_dropped.inc()

    def set_leader(self, leads: bool) -> None:
        self._leader.set(leads)

    def set_redis_up(self, answers: bool) -> None:
        self._redis.set(answers)

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        if self._clock() >= self._phases_due:
            self.lifecycle.count_jobs(self._phases())
            self.lifecycle.count_gpus(self._gpus())
            self._phases_due = self._clock() + _PHASES_SECONDS
        return generate_latest(self._registry)
