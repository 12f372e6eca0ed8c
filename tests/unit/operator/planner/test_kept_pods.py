"""Failed pods that are kept for their logs: one for each process, which counts for nothing."""

from typing import Any

import pytest

from kubealign.process_settings import ExitCode
from kubealign_operator.kube_views.observed_job import DependencyView, VolumePath
from support.rendering.cluster import Cluster
from support.rendering.jobs import ppo, sft, shared_workers, two_ranks


def _running(job: dict[str, Any]) -> Cluster:
    done = DependencyView("sft", "1", phase="Succeeded", result=VolumePath("runs", "x"))
    cluster = Cluster(job, dependencies={"sft": done})
    cluster.start()
    assert cluster.phase == "Running"
    return cluster


def _crash(cluster: Cluster, process: str) -> None:
    """Fail the process, and let its successors serve."""
    cluster.pass_time(100)
    cluster.end(cluster.name(process), 1, "RuntimeError: the loss is not a number")
    for _ in range(3):
        cluster.settle()
        cluster.finish_leaving()
        cluster.pass_time(31)
    cluster.serve()
    cluster.settle()


def _pods_of(cluster: Cluster, text: str) -> dict[str, str]:
    """Return the phases of the pods by name."""
    return {name: pod["status"]["phase"] for name, pod in cluster.pods.items() if text in name}


def test_the_last_failed_pod_of_a_process_is_kept() -> None:
    cluster = _running(two_ranks())
    _crash(cluster, "trainer-1")
    assert _pods_of(cluster, "trainer") == {
        "two-ranks-trainer-1-0": "Failed",
        "two-ranks-trainer-0-1": "Running",
        "two-ranks-trainer-1-1": "Running",
    }
    _crash(cluster, "trainer-1")
    # The failure of the same process replaces it, that of another one does not.
    _crash(cluster, "trainer-0")
    assert _pods_of(cluster, "trainer") == {
        "two-ranks-trainer-1-1": "Failed",
        "two-ranks-trainer-0-2": "Failed",
        "two-ranks-trainer-0-3": "Running",
        "two-ranks-trainer-1-3": "Running",
    }
    assert (cluster.phase, cluster.message) == ("Running", "")
    assert cluster.counted("trainer") == (2, 2)
    assert cluster.condition("Ready")["status"] == "True"
    assert cluster.job["status"]["restarts"] == 3
    plan = cluster.settle()
    assert (plan.delete, plan.create) == ((), ())


def test_a_kept_pod_restarts_nothing_for_a_restarted_operator() -> None:
    cluster = _running(two_ranks())
    _crash(cluster, "trainer-1")
    successor = cluster.forget()
    successor.pass_time(1000)
    plan = successor.settle()
    assert (plan.delete, plan.create) == ((), ())
    assert successor.job["status"] == cluster.job["status"]


def test_a_lost_rank_is_replaced_although_an_earlier_pod_of_it_is_kept() -> None:
    cluster = _running(two_ranks())
    _crash(cluster, "trainer-1")
    cluster.vanish("two-ranks-trainer-1-1")
    for _ in range(2):
        cluster.settle()
        cluster.finish_leaving()
    assert cluster.made[-2:] == ["two-ranks-trainer-0-2", "two-ranks-trainer-1-2"]
    assert "two-ranks-trainer-1-0" in cluster.pods


def test_a_kept_pod_that_someone_deletes_holds_nothing_back() -> None:
    cluster = _running(two_ranks())
    _crash(cluster, "trainer-1")
    cluster.pods["two-ranks-trainer-1-0"]["metadata"]["finalizers"] = ["example.org/audit"]
    cluster.delete("two-ranks-trainer-1-0")
    plan = cluster.settle()
    assert (plan.delete, plan.create, cluster.phase) == ((), (), "Running")
    assert cluster.job["status"]["restarts"] == 1


def test_a_kept_worker_is_no_replica() -> None:
    cluster = _running(ppo())
    replicas = cluster.job["status"]["rolloutReplicas"]
    _crash(cluster, "rollout-1")
    assert _pods_of(cluster, "rollout-1") == {"ppo-rollout-1-0": "Failed", "ppo-rollout-1-1": "Running"}
    assert cluster.job["status"]["rolloutReplicas"] == replicas
    assert cluster.counted("rollout") == (replicas, replicas)


def test_the_kept_pod_of_a_removed_worker_goes_with_it() -> None:
    cluster = _running(shared_workers())
    _crash(cluster, "rollout-1")
    assert _pods_of(cluster, "rollout-1-0")
    cluster.job["spec"]["rollout"] |= {"replicas": 1, "minReplicas": 1}
    cluster.settle()
    cluster.finish_leaving()
    assert not _pods_of(cluster, "rollout-1")


def test_a_pod_that_never_ran_has_no_log_to_keep() -> None:
    cluster = _running(sft())
    _crash(cluster, "trainer-0")
    name = cluster.name("trainer-0")
    cluster.pods[name]["status"] = {"phase": "Failed", "reason": "OutOfcpu", "message": "no room"}
    for _ in range(2):
        cluster.settle()
        cluster.pass_time(31)
    cluster.settle()
    assert name not in cluster.pods
    assert _pods_of(cluster, "trainer-0")["sft-trainer-0-0"] == "Failed"


def test_a_pod_whose_other_containers_run_is_deleted() -> None:
    cluster = _running(sft())
    cluster.pass_time(100)
    cluster.end(cluster.name("trainer-0"), 1)
    cluster.pods[cluster.name("trainer-0")]["status"]["phase"] = "Running"
    cluster.settle()
    cluster.pass_time(31)
    cluster.settle()
    assert "deletionTimestamp" in cluster.pods["sft-trainer-0-0"]["metadata"]


def test_a_suspension_removes_the_kept_pods() -> None:
    cluster = _running(two_ranks())
    _crash(cluster, "trainer-1")
    cluster.job["spec"]["suspend"] = True
    for _ in range(3):
        cluster.settle()
        cluster.finish_leaving()
    assert cluster.phase == "Suspended"
    assert not _pods_of(cluster, "trainer")


@pytest.mark.parametrize(("code", "phase"), [(0, "Succeeded"), (int(ExitCode.PERMANENT), "Failed")])
def test_a_finished_job_keeps_them_with_its_other_pods(code: int, phase: str) -> None:
    cluster = _running(two_ranks())
    _crash(cluster, "trainer-1")
    cluster.end(cluster.name("driver"), code, "done")
    cluster.settle()
    cluster.finish_leaving()
    cluster.settle()
    assert cluster.phase == phase
    assert _pods_of(cluster, "trainer-1") == {
        "two-ranks-trainer-1-0": "Failed",
        "two-ranks-trainer-1-1": "Failed",
    }


def test_a_retry_removes_them() -> None:
    cluster = _running(sft(lifecycle={"maxRestarts": 1}))
    _crash(cluster, "trainer-0")
    cluster.end(cluster.name("trainer-0"), 1)
    cluster.settle()
    assert cluster.phase == "Failed"
    cluster.job["metadata"]["annotations"] = {"kubealign.dev/retry": "1"}
    for _ in range(3):
        cluster.settle()
        cluster.finish_leaving()
    assert cluster.phase == "Starting"
    assert not _pods_of(cluster, "trainer")


def test_a_pod_that_failed_long_before_the_operator_sees_it_is_kept() -> None:
    cluster = _running(sft())
    cluster.pass_time(100)
    cluster.end(cluster.name("trainer-0"), 1)
    cluster.pass_time(1000)
    plan = cluster.step()
    # Its successor waits for the record of the attempt only.
    assert (plan.delete, plan.create) == ((), ())
    assert plan.requeue_after == pytest.approx(0, abs=0.1)
    assert [pod["metadata"]["name"] for pod in cluster.step().create] == ["sft-trainer-0-1"]
    assert _pods_of(cluster, "trainer")["sft-trainer-0-0"] == "Failed"
