"""Conditions of a job as the tools of the ecosystem read them: Flux, Helm, `kubectl wait`.

https://github.com/kubernetes-sigs/cli-utils/tree/master/pkg/kstatus
"""

from typing import Any

import pytest

from support.rendering.cluster import Cluster
from support.rendering.jobs import sft

Json = dict[str, Any]


def kstatus(job: Json) -> str:
    """Return the status that kstatus computes for a custom resource (status.go and generic.go)."""
    status = job.get("status", {})
    if status.get("observedGeneration") != job["metadata"]["generation"]:
        return "InProgress"
    conditions = {item["type"]: item["status"] for item in status.get("conditions", [])}
    if conditions.get("Reconciling") == "True":
        return "InProgress"
    if conditions.get("Stalled") == "True":
        return "Failed"
    return "InProgress" if conditions.get("Ready", "True") != "True" else "Current"


def running() -> Cluster:
    cluster = Cluster(sft())
    cluster.start()
    return cluster


def test_a_job_is_in_progress_until_it_runs() -> None:
    cluster = Cluster(sft())
    assert kstatus(cluster.job) == "InProgress"
    cluster.settle()
    assert (cluster.phase, kstatus(cluster.job)) == ("Starting", "InProgress")
    cluster.start()
    assert (cluster.phase, kstatus(cluster.job)) == ("Running", "Current")


@pytest.mark.parametrize(
    ("exit_code", "phase", "expected"), [(0, "Succeeded", "Current"), (78, "Failed", "Failed")]
)
def test_nothing_waits_for_a_finished_job(exit_code: int, phase: str, expected: str) -> None:
    cluster = running()
    cluster.end(cluster.name("driver"), exit_code, "the data has no prompts")
    cluster.step()
    assert (cluster.phase, kstatus(cluster.job)) == (phase, expected)
    cluster.finish_leaving()
    cluster.settle()
    assert kstatus(cluster.job) == expected
    if phase == "Failed":
        assert "the data has no prompts" in cluster.condition("Stalled")["message"]


def test_an_invalid_job_fails_a_rollout_at_once_and_goes_on_when_it_is_corrected() -> None:
    cluster = Cluster(sft(checkpoint={}))
    cluster.settle()
    assert kstatus(cluster.job) == "Failed"
    assert cluster.condition("Stalled")["reason"] == "Invalid"
    cluster.job["spec"]["checkpoint"] = {"volume": {"claimName": "runs"}}
    cluster.settle()
    assert kstatus(cluster.job) == "InProgress"


def test_a_retried_job_is_in_progress_again() -> None:
    cluster = running()
    cluster.end(cluster.name("driver"), 78)
    cluster.settle()
    cluster.finish_leaving()
    cluster.job["metadata"]["annotations"] = {"kubealign.dev/retry": "1"}
    cluster.settle()
    assert kstatus(cluster.job) == "InProgress"
    cluster.start()
    assert kstatus(cluster.job) == "Current"


def test_a_crashed_rank_leaves_a_running_job_in_progress_until_it_is_back() -> None:
    cluster = running()
    cluster.end(cluster.name("trainer-0"), 1)
    cluster.step()
    assert kstatus(cluster.job) == "InProgress"
