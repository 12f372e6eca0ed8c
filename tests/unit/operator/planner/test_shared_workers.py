"""Rollout workers of several pods: each starts, restarts and counts as one."""

from support.rendering.cluster import Cluster
from support.rendering.jobs import UID, shared_workers

RANK = "kubealign.dev/worker-rank"
PODS = ["rollout-0", "rollout-0-r1", "rollout-1", "rollout-1-r1"]


def running() -> Cluster:
    cluster = Cluster(shared_workers())
    cluster.start()
    assert cluster.phase == "Running"
    return cluster


def test_each_worker_has_its_own_rendezvous_and_counts_once() -> None:
    cluster = running()
    assert [name for name in cluster.short_names() if name.startswith("rollout")] == PODS
    for process, rank, leader in (("rollout-1", 0, "rollout-1"), ("rollout-1-r1", 1, "rollout-1")):
        pod_settings = cluster.settings(process)
        assert (pod_settings.get("rank", 0), pod_settings["world_size"]) == (rank, 2)
        assert pod_settings["rendezvous"].startswith(f"{leader}.shared-peers.team.svc:")
        assert pod_settings.get("serves", True) is (rank == 0)
        assert cluster.pods[cluster.name(process)]["metadata"]["labels"][RANK] == str(rank)
    assert RANK not in cluster.pods["shared-trainer-0-0"]["metadata"]["labels"]
    assert cluster.counted("rollout") == (2, 2)
    status = cluster.job["status"]
    assert status["rolloutReplicas"] == 2
    assert status["selector"] == f"kubealign.dev/job-uid={UID},kubealign.dev/group=rollout,{RANK}=0"


def test_a_worker_is_ready_when_all_of_its_pods_are() -> None:
    cluster = running()
    cluster.run("shared-rollout-1-r1-0", ready=False)
    cluster.settle()
    assert cluster.counted("rollout") == (2, 1)


def test_a_failed_pod_restarts_its_worker_and_no_other() -> None:
    cluster = running()
    cluster.pass_time(100)
    cluster.end("shared-rollout-0-r1-0", 1, "RuntimeError: connection reset")
    rendered = cluster.step()
    assert cluster.job["status"]["attempts"] == {"rollout-0": 1}
    assert cluster.job["status"]["restarts"] == 1
    assert [(pod.name, pod.grace_seconds) for pod in rendered.delete] == [("shared-rollout-0-0", 1)]
    assert "starting rollout-0 again (1 of 10 restarts used)" in cluster.message
    cluster.settle()
    cluster.finish_leaving()
    cluster.pass_time(1)
    cluster.settle()
    assert cluster.made[-2:] == ["shared-rollout-0-1", "shared-rollout-0-r1-1"]
    cluster.serve()
    cluster.settle()
    assert cluster.counted("rollout") == (2, 2)


def test_scaling_adds_and_removes_whole_workers() -> None:
    cluster = running()
    cluster.job["spec"]["rollout"]["replicas"] = 3
    cluster.settle()
    assert cluster.made[-2:] == ["shared-rollout-2-0", "shared-rollout-2-r1-0"]
    cluster.serve()
    cluster.settle()
    assert (cluster.counted("rollout"), cluster.job["status"]["rolloutReplicas"]) == ((3, 3), 3)
    cluster.job["spec"]["rollout"]["replicas"] = 1
    gone = [pod.name for pod in cluster.step().delete]
    assert gone == [f"shared-rollout-{name}" for name in ("2-r1-0", "2-0", "1-r1-0", "1-0")], (
        "the highest number goes first"
    )
    cluster.finish_leaving()
    cluster.settle()
    assert (cluster.counted("rollout"), cluster.job["status"]["rolloutReplicas"]) == ((1, 1), 1)
