"""The retry of a failed job, requested by an annotation."""

from typing import Any

import pytest

from kubealign_operator.kube_views.observed_job import DependencyView, DriverProgress, VolumePath
from support.rendering.cluster import Cluster
from support.rendering.jobs import ppo, sft, two_ranks

_PERMANENT = 78


def _request(cluster: Cluster, value: str) -> None:
    cluster.job["metadata"].setdefault("annotations", {})["kubealign.dev/retry"] = value


def _failed(job: dict[str, Any]) -> Cluster:
    """Return a job that has used up its restarts, while some of its processes are still running."""
    cluster = Cluster(job)
    cluster.start()
    cluster.progress = DriverProgress(step=4)
    for restarts in range(job["spec"]["lifecycle"]["maxRestarts"] + 1):
        assert cluster.job["status"]["restarts"] == restarts
        cluster.end(cluster.name("trainer-0"), 1, "ValueError: x")
        cluster.settle()
        cluster.pass_time(600)
        cluster.settle()
        if cluster.phase != "Failed":
            cluster.finish_leaving()
            cluster.start()
    assert cluster.phase == "Failed"
    return cluster


def _end_all(cluster: Cluster) -> None:
    for _ in range(3):
        cluster.finish_leaving()
        cluster.settle()


def _reasons(cluster: Cluster) -> list[str]:
    return [event.reason for event in cluster.events]


@pytest.mark.parametrize("job", [sft, two_ranks])
def test_a_retry_starts_a_failed_job_again_with_a_new_budget(job: Any) -> None:
    cluster = _failed(job(lifecycle={"maxRestarts": 1}))
    first = list(cluster.made)
    _request(cluster, "a")
    cluster.step()
    # The driver may still be saving a checkpoint: the others are deleted after it.
    assert cluster.phase == "Failed"
    assert cluster.condition("Ready")["message"] == "retry: waits for driver, nats, prepare to end"
    assert "deletionTimestamp" not in cluster.pods[cluster.name("nats")]["metadata"]
    _end_all(cluster)
    assert cluster.phase == "Starting"
    assert set(cluster.pods) == {cluster.name("nats")}
    status = cluster.job["status"]
    assert (status["restarts"], status["retry"]) == (0, "a")
    assert "attempts" not in status and "completionTime" not in status
    assert cluster.condition("Failed")["status"] == "False"
    assert cluster.condition("Failed")["reason"] == "Retried"
    message = next(event.message for event in cluster.events if event.reason == "Retried")
    assert message.startswith("retried from the last checkpoint before or at step 4 after: trainer-0 ended")
    cluster.start()
    assert cluster.phase == "Running"
    # The data were prepared by the first attempt.
    assert cluster.made.count(cluster.name("prepare")) == first.count(cluster.name("prepare")) == 1
    # The same value is no second retry.
    cluster.end(cluster.name("driver"), _PERMANENT, "No space left on device")
    cluster.settle()
    _end_all(cluster)
    assert cluster.phase == "Failed"
    assert _reasons(cluster).count("Retried") == 1
    _request(cluster, "b")
    cluster.settle()
    _end_all(cluster)
    assert cluster.phase == "Starting"


def test_the_exit_code_of_a_failed_attempt_does_not_fail_the_retry() -> None:
    cluster = Cluster(sft())
    cluster.start()
    cluster.end(cluster.name("driver"), _PERMANENT, "No space left on device")
    cluster.settle()
    assert cluster.phase == "Failed"
    _request(cluster, "a")
    cluster.settle()
    _end_all(cluster)
    cluster.start()
    assert cluster.phase == "Running"


def test_the_deadline_counts_over_retries() -> None:
    cluster = Cluster(sft(lifecycle={"maxRestarts": 0, "activeDeadlineSeconds": 100}))
    cluster.start()
    cluster.pass_time(60)
    cluster.end(cluster.name("driver"), 1)
    cluster.settle()
    cluster.pass_time(1000)
    _request(cluster, "a")
    cluster.settle()
    _end_all(cluster)
    cluster.start()
    assert (cluster.phase, cluster.job["status"]["activeSeconds"]) == ("Running", 60)
    cluster.pass_time(41)
    cluster.settle()
    assert cluster.condition("Failed")["reason"] == "DeadlineExceeded"
    _end_all(cluster)
    _request(cluster, "b")
    cluster.settle()
    assert cluster.phase == "Failed"
    assert cluster.events[-1].reason == "RetryRefused"
    assert "which a retry does not extend" in cluster.events[-1].message
    # A refused retry is not repeated once its cause is gone: the next value is.
    cluster.job["spec"]["lifecycle"]["activeDeadlineSeconds"] = 1000
    cluster.settle()
    assert cluster.phase == "Failed"
    _request(cluster, "c")
    cluster.settle()
    _end_all(cluster)
    assert cluster.phase == "Starting"


def test_a_job_that_succeeded_is_not_retried() -> None:
    cluster = Cluster(sft())
    cluster.start()
    cluster.end(cluster.name("driver"), 0)
    cluster.settle()
    before = list(cluster.made)
    _request(cluster, "a")
    cluster.settle()
    _end_all(cluster)
    assert (cluster.phase, cluster.made) == ("Succeeded", before)
    assert _reasons(cluster).count("RetryRefused") == 1


def test_a_retry_of_a_job_that_has_not_failed_does_not_retry_its_next_failure() -> None:
    cluster = Cluster(sft(lifecycle={"maxRestarts": 0}))
    _request(cluster, "a")
    cluster.start()
    cluster.end(cluster.name("trainer-0"), 1)
    cluster.settle()
    _end_all(cluster)
    assert cluster.phase == "Failed"
    assert "Retried" not in _reasons(cluster)


def test_a_job_that_failed_before_its_start_waits_for_its_dependencies_again() -> None:
    cluster = Cluster(ppo(), dependencies={"sft": DependencyView("sft", "1", phase="Failed")})
    cluster.settle()
    assert cluster.phase == "Failed"
    cluster.dependencies["sft"] = DependencyView("sft", "1", phase="Running")
    _request(cluster, "a")
    cluster.settle()
    assert cluster.phase == "Pending"
    cluster.dependencies["sft"] = DependencyView("sft", "1", "Succeeded", result=VolumePath("runs", "x"))
    cluster.settle()
    assert cluster.phase == "Starting"


def test_a_finished_job_is_not_deleted_while_a_retry_is_requested() -> None:
    cluster = _failed(sft(lifecycle={"maxRestarts": 0, "ttlSecondsAfterFinished": 600}))
    _request(cluster, "a")
    cluster.pass_time(601)
    assert not cluster.step().delete_job
    _end_all(cluster)
    assert cluster.phase == "Starting"
