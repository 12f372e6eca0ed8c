"""The start deadline, and the time that counts as active."""

from kubealign_operator.kube_views.observed_job import DependencyView, VolumePath
from support.rendering.cluster import Cluster
from support.rendering.jobs import ppo, sft, two_ranks

_NO_GPU = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
_SFT = DependencyView("sft", "1", phase="Succeeded", result=VolumePath("runs", "x"))


def _prepared(cluster: Cluster) -> Cluster:
    """Run bus and preparation, so that the ranks are created."""
    cluster.settle()
    cluster.serve()
    cluster.settle()
    cluster.end(cluster.name("prepare"), 0)
    cluster.settle()
    return cluster


def test_a_job_whose_pods_do_not_start_in_time_fails_with_the_cause_and_frees_its_gpus() -> None:
    cluster = _prepared(Cluster(two_ranks(lifecycle={"startDeadlineSeconds": 600})))
    cluster.run("two-ranks-trainer-0-0")
    cluster.unschedulable("two-ranks-trainer-1-0", _NO_GPU)
    plan = cluster.settle()
    assert plan.requeue_after is not None and 599 < plan.requeue_after < 601
    cluster.pass_time(599)
    cluster.settle()
    assert cluster.phase == "Starting"
    cluster.pass_time(1)
    plan = cluster.step()
    assert cluster.phase == "Failed"
    assert cluster.message == (
        "the job has not started within 600 s (lifecycle.startDeadlineSeconds): trainer-1 fits on no node: "
        f"{_NO_GPU}"
    )
    assert cluster.condition("Failed")["reason"] == "StartDeadlineExceeded"
    assert [pod.name for pod in plan.delete] == ["two-ranks-trainer-1-0"]
    assert {stop.name for stop in plan.stop} == {"two-ranks-nats-0", "two-ranks-trainer-0-0"}
    assert "startingSince" not in cluster.job["status"]
    cluster.job["metadata"]["annotations"] = {"kubealign.dev/retry": "a"}
    for _ in range(3):
        cluster.settle()
        cluster.finish_leaving()
    cluster.start()
    assert cluster.phase == "Running"


def test_an_image_that_cannot_be_pulled_is_the_cause() -> None:
    cluster = Cluster(sft(lifecycle={"startDeadlineSeconds": 60}))
    cluster.settle()
    cluster.wait("sft-nats-0", "ImagePullBackOff", "no such image")
    cluster.settle()
    cluster.pass_time(60)
    cluster.settle()
    assert (cluster.phase, "nats cannot get its image" in cluster.message) == ("Failed", True)


def test_neither_a_long_preparation_nor_a_queue_counts_towards_the_start() -> None:
    cluster = Cluster(two_ranks(lifecycle={"startDeadlineSeconds": 60}))
    cluster.settle()
    cluster.serve()
    cluster.settle()
    cluster.pass_time(7200)
    cluster.settle()
    assert cluster.phase == "Starting"
    cluster.end(cluster.name("prepare"), 0)
    cluster.settle()
    for process in ("trainer-0", "trainer-1"):
        cluster.unschedulable(cluster.name(process), "", "SchedulingGated")
    cluster.settle()
    cluster.pass_time(7200)
    cluster.settle()
    assert cluster.phase == "Starting"
    for process in ("trainer-0", "trainer-1"):
        cluster.unschedulable(cluster.name(process), _NO_GPU)
    cluster.settle()
    cluster.pass_time(60)
    cluster.settle()
    assert cluster.phase == "Failed"


def test_a_running_job_has_no_start_deadline() -> None:
    cluster = Cluster(sft(lifecycle={"startDeadlineSeconds": 60}))
    cluster.start()
    cluster.delete(cluster.name("trainer-0"))
    cluster.finish_leaving()
    cluster.settle()
    cluster.unschedulable(cluster.name("trainer-0"), _NO_GPU)
    cluster.pass_time(3600)
    cluster.settle()
    assert (cluster.phase, cluster.condition("Ready")["reason"]) == ("Running", "Unschedulable")


def test_the_minimum_of_rollout_workers_is_enough() -> None:
    job = ppo(lifecycle={"startDeadlineSeconds": 60})
    cluster = _prepared(Cluster(job, dependencies={"sft": _SFT}))
    for name in list(cluster.pods):
        if cluster.pods[name]["status"]["phase"] == "Pending" and "rollout-2" not in name:
            cluster.run(name)
    cluster.settle()
    cluster.pass_time(3600)
    cluster.settle()
    assert cluster.phase == "Running"


def test_time_in_a_queue_is_not_active_time() -> None:
    cluster = Cluster(two_ranks(lifecycle={"activeDeadlineSeconds": 3600}))
    cluster.settle()
    for process in ("nats", "prepare"):
        cluster.unschedulable(cluster.name(process), "", "SchedulingGated")
    cluster.pass_time(7200)
    plan = cluster.settle()
    assert cluster.phase == "Starting"
    # No deadline runs: only the credentials expire some day.
    assert plan.requeue_after is not None and plan.requeue_after > 50 * 86_400
    cluster.serve()
    cluster.settle()
    # The preparation is work of the job.
    cluster.pass_time(100)
    cluster.end(cluster.name("prepare"), 0)
    cluster.settle()
    for process in ("trainer-0", "trainer-1"):
        cluster.unschedulable(cluster.name(process), _NO_GPU)
    cluster.pass_time(7200)
    cluster.settle()
    assert (cluster.phase, cluster.job["status"]["activeSeconds"]) == ("Starting", 100)
    cluster.serve()
    cluster.settle()
    cluster.serve()
    cluster.settle()
    assert cluster.phase == "Running"
    # A successor's wait for a node counts, as every restart does.
    cluster.pass_time(1000)
    cluster.delete(cluster.name("trainer-0"))
    cluster.step()
    cluster.finish_leaving()
    cluster.settle()
    cluster.pass_time(2499)
    cluster.settle()
    assert cluster.phase == "Running"
    cluster.pass_time(1)
    cluster.settle()
    assert cluster.phase == "Failed"
    assert cluster.message == "the job has run for 3600 s (lifecycle.activeDeadlineSeconds)"
