"""Jobs of thousands of processes: a plan takes linear work, and processes and creations are bounded."""

import sys
from collections import Counter
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest

from kubealign.roles import process_count, roles
from kubealign_operator.names import GROUP_LABEL
from kubealign_operator.planner.pod_actions import MAX_CREATIONS
from kubealign_operator.planner.validation import parse_job
from support.rendering.cluster import Cluster
from support.rendering.jobs import PLATFORM, QUEUE, ppo, scorer_replicas, sft, sharded_scorers, shared_workers

Json = dict[str, Any]


def _workers(replicas: int, tensor_parallel: int = 1) -> Json:
    engine = {"torch": {"tensorParallel": tensor_parallel}}
    return shared_workers(rollout={"replicas": replicas, "minReplicas": 1, "engine": engine})


def _prepared(job: Json, *, queued: bool = False) -> Cluster:
    """Return the job's cluster before the reconcile that creates the workers."""
    cluster = Cluster(job, platform=replace(PLATFORM, uses_kueue=queued))
    cluster.step()
    if queued:
        (workload,) = cluster.workloads
        cluster.admit(workload)
        cluster.step()
    cluster.serve()
    cluster.end(cluster.name("prepare"), 0)
    return cluster


def _executed_lines(cluster: Cluster) -> int:
    """Return the number of Python lines that one plan executes; each turn of a loop counts."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        cluster.rendered()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("queue", [True, False])
def test_the_work_of_a_plan_is_linear_in_the_pods(queue: bool) -> None:
    lines = []
    for replicas in (60, 120, 240):
        job = _workers(replicas)
        if queue:
            job["metadata"]["labels"] = QUEUE
        lines.append(_executed_lines(_prepared(job, queued=queue)))
    first, second, third = lines
    assert third - second < 2.1 * (second - first)


def test_one_reconcile_creates_a_bounded_number_of_pods_of_every_group() -> None:
    cluster = _prepared(_workers(MAX_CREATIONS + 100))
    groups = Counter(
        manifest["metadata"]["labels"][GROUP_LABEL]
        for manifest in cluster.step().create
        if manifest["kind"] == "Pod"
    )
    assert groups == {"trainer": 1, "reward-exact": 1, "rollout": MAX_CREATIONS - 2}
    cluster.settle()
    assert len(cluster.pods) == MAX_CREATIONS + 104  # nats, prepare, trainer, reward


@pytest.mark.parametrize("job", [sft(), ppo(), shared_workers(), scorer_replicas(), sharded_scorers()])
def test_processes_are_counted_as_they_are_listed(job: Json) -> None:
    parsed = parse_job(job)
    assert process_count(parsed) == len(roles(parsed))


def test_a_job_beyond_the_limit_is_invalid_and_is_never_listed() -> None:
    scorers = [{"name": "exact", "model": {"volume": {"claimName": "m"}}, "replicas": 1024, "ranks": 1024}]
    job = _workers(1024, 64)
    job["spec"]["rewards"] = scorers
    assert process_count(parse_job(job)) == 3 + 1024 * 64 + 1024 * 1024
    cluster = Cluster(job)
    plan = cluster.step()
    assert not plan.create
    assert cluster.phase == "Pending"
    assert cluster.condition("Accepted")["reason"] == "Invalid"
    assert "spec asks for 1114115 processes: at most 2048 are allowed" in cluster.message


def test_the_limit_is_a_setting() -> None:
    cluster = Cluster(sft(), platform=replace(PLATFORM, max_processes=3))
    cluster.settle()
    assert cluster.phase == "Starting"
    cluster = Cluster(sft(), platform=replace(PLATFORM, max_processes=2))
    cluster.settle()
    assert "asks for 3 processes: at most 2" in cluster.message


def test_a_running_job_that_is_scaled_beyond_the_limit_goes_on_and_can_succeed() -> None:
    cluster = Cluster(_workers(2), platform=replace(PLATFORM, max_processes=8))
    cluster.start()
    pods = set(cluster.pods)
    cluster.job["spec"]["rollout"]["replicas"] = 9
    cluster.settle()
    assert (cluster.phase, set(cluster.pods)) == ("Running", pods)
    assert "asks for 13 processes: at most 8" in cluster.message
    cluster.end(cluster.name("driver"), 0)
    cluster.settle()
    assert cluster.phase == "Succeeded"
