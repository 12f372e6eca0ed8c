"""Operator metrics by namespace: phases, restarts, outcomes and waits, and the end of their series."""

from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from kubealign_operator.controller.lifecycle_metrics import NAMESPACE_SECONDS, LifecycleMetrics
from kubealign_operator.planner.plan import KubeEventType, PlannedEvent

RESTARTED = PlannedEvent(KubeEventType.WARNING, "Restarted", "driver crashed; starting driver again")
CREATED, STARTED, SCHEDULED = (f"2026-11-01T10:0{minute}:00Z" for minute in range(3))


class Site:
    """Lifecycle metrics with a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.registry = CollectorRegistry()
        self.metrics = LifecycleMetrics(self.registry, lambda: self.now)

    def value(self, sample: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(sample, labels)

    def record(self, before: dict[str, Any], after: dict[str, Any], *events: PlannedEvent) -> None:
        job = {"metadata": {"namespace": "team", "name": "one", "creationTimestamp": CREATED}}
        self.metrics.record_status({**job, "status": before}, after, events)


@pytest.fixture
def site() -> Site:
    return Site()


def condition(kind: str, status: str, reason: str) -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason}


def test_phases_are_counted_by_namespace_and_absent_phases_are_zero(site: Site) -> None:
    site.metrics.count_jobs([("team", "Running"), ("team", "Running"), ("other", "")])
    assert site.value("kubealign_jobs", namespace="team", phase="Running") == 2
    assert site.value("kubealign_jobs", namespace="team", phase="Failed") == 0
    assert site.value("kubealign_jobs", namespace="other", phase="Unseen") == 1
    site.metrics.count_jobs([("other", "Failed")])
    assert site.value("kubealign_jobs", namespace="team", phase="Running") is None
    assert site.value("kubealign_jobs", namespace="other", phase="Unseen") == 0


def test_gpus_are_counted_by_namespace(site: Site) -> None:
    site.metrics.count_jobs([("team", "Running"), ("idle", "Succeeded")])
    site.metrics.count_gpus([("team", 8), ("team", 1)])
    assert site.value("kubealign_operator_gpus", namespace="team") == 9
    assert site.value("kubealign_operator_gpus", namespace="idle") == 0
    site.metrics.count_jobs([("idle", "Succeeded")])
    site.metrics.count_gpus([])
    assert site.value("kubealign_operator_gpus", namespace="team") is None


def test_restarts_are_counted_by_cause(site: Site) -> None:
    restarting = {"phase": "Running", "conditions": [condition("Ready", "False", "OutOfMemory")]}
    site.record({"phase": "Running"}, restarting, RESTARTED, RESTARTED)
    assert site.value("kubealign_operator_job_restarts_total", namespace="team", cause="OutOfMemory") == 2
    # A reason that is no cause of a restart, such as a tenant's own text, makes no series.
    odd = {"phase": "Running", "conditions": [condition("Ready", "False", "x" * 100)]}
    site.record({"phase": "Running"}, odd, RESTARTED)
    site.record({"phase": "Running"}, {"phase": "Running", "conditions": "none"}, RESTARTED)
    assert site.value("kubealign_operator_job_restarts_total", namespace="team", cause="Other") == 2
    site.record({"phase": "Running"}, restarting)
    assert site.value("kubealign_operator_job_restarts_total", namespace="team", cause="OutOfMemory") == 2


def test_outcomes_are_counted_once(site: Site) -> None:
    failed = {"phase": "Failed", "conditions": [condition("Failed", "True", "DeadlineExceeded")]}
    site.record({"phase": "Running"}, failed)
    site.record(failed, {**failed, "message": "changed later"})
    site.record({"phase": "Running"}, {"phase": "Succeeded"})
    finished = "kubealign_operator_jobs_finished_total"
    assert site.value(finished, namespace="team", phase="Failed", reason="DeadlineExceeded") == 1
    assert site.value(finished, namespace="team", phase="Succeeded", reason="") == 1


def test_queue_and_start_times_are_those_of_the_first_start(site: Site) -> None:
    starting = {"phase": "Starting", "startTime": STARTED}
    # The clock of the active time ran for 20 seconds, and again from 10:02:00 on.
    scheduled = {**starting, "activeSince": SCHEDULED, "activeSeconds": 20.0}
    running = {**scheduled, "phase": "Running", "credentials": {"generation": 1}}
    site.record({"phase": "Pending"}, starting)
    site.record(starting, {**starting, "activeSince": STARTED})
    site.record(starting, scheduled)
    assert site.value("kubealign_operator_job_start_seconds_count", namespace="team") is None
    site.record(scheduled, running)
    site.record(running, {**running, "step": 3})
    assert site.value("kubealign_operator_job_queue_seconds_sum", namespace="team") == 40
    assert site.value("kubealign_operator_job_queue_seconds_count", namespace="team") == 1
    assert site.value("kubealign_operator_job_start_seconds_count", namespace="team") == 1
    # A job that has run before has not waited since its creation.
    for earlier in (
        {"credentials": {"generation": 2}},
        {"retry": "1"},
        {"conditions": [condition("Suspended", "False", "Resumed")]},
    ):
        site.record({"phase": "Starting"}, {**running, **earlier})
    assert site.value("kubealign_operator_job_start_seconds_count", namespace="team") == 1


def test_the_wait_for_an_admission_counts_from_the_moment_when_the_job_could_start(site: Site) -> None:
    conditions = [condition("DependenciesReady", "True", "Ready") | {"lastTransitionTime": STARTED}]
    running = {
        "phase": "Running",
        "startTime": SCHEDULED,
        "activeSince": SCHEDULED,
        "conditions": conditions,
        "credentials": {"generation": 1},
    }
    site.record({"phase": "Starting"}, running)
    assert site.value("kubealign_operator_job_queue_seconds_sum", namespace="team") == 60
    assert site.value("kubealign_operator_job_queue_seconds_count", namespace="team") == 1


def test_series_of_a_namespace_end_an_hour_after_its_last_job(site: Site) -> None:
    failed = {"phase": "Failed", "conditions": [condition("Failed", "True", "Crashed")]}
    restarting = {"phase": "Running", "conditions": [condition("Ready", "False", "Crashed")]}
    running = {"phase": "Running", "startTime": STARTED, "activeSince": SCHEDULED}
    site.record({"phase": "Starting"}, running)
    site.record(running, restarting, RESTARTED)
    site.record(restarting, failed)
    site.metrics.count_jobs([("team", "Failed")])
    site.now = NAMESPACE_SECONDS
    site.metrics.count_jobs([])
    assert b'kubealign_operator_jobs_finished_total{namespace="team"' in generate_latest(site.registry)
    site.now += 1
    site.metrics.count_jobs([])
    assert b"team" not in generate_latest(site.registry)
    # A namespace of the same name starts anew.
    site.record(restarting, failed)
    assert b'namespace="team",phase="Failed",reason="Crashed"} 1.0' in generate_latest(site.registry)
