"""Pods with several ranks: each starts, counts and restarts with its ranks."""

from typing import Any

from kubealign.pod_contract import ENV_SETTINGS
from support.rendering.cluster import Cluster
from support.rendering.jobs import shared_workers, two_ranks


def gpus(count: int) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": count}
    return {"spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]}}


def gpu_job() -> dict[str, Any]:
    """Return a job with four ranks on two nodes of two GPUs."""
    job = two_ranks()
    job["spec"]["trainer"] |= {"ranks": 4, "podTemplate": gpus(2)}
    return job


def running(job: dict[str, Any]) -> Cluster:
    cluster = Cluster(job)
    cluster.start()
    assert cluster.phase == "Running"
    return cluster


def trainers(cluster: Cluster) -> list[str]:
    return [name for name in cluster.short_names() if name.startswith("trainer")]


def test_four_ranks_run_in_two_pods() -> None:
    cluster = running(gpu_job())
    assert trainers(cluster) == ["trainer-0", "trainer-2"]
    assert cluster.counted("trainer") == (4, 4)
    second = cluster.settings("trainer-2")
    assert (second["rank"], second["world_size"]) == (2, 4)
    assert second["companions"] == [{"name": "trainer-3", "rank": 3}]
    assert second["rendezvous"].startswith("trainer-0.")
    pod = cluster.pods[cluster.name("trainer-2")]
    assert pod["metadata"]["labels"]["kubealign.dev/processes"] == "2"
    (container,) = pod["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"health": 8081, "metrics": 9090, "metrics-1": 9091}
    assert container["resources"]["requests"] == {"cpu": "1000m", "memory": "4Gi"}
    for name in ("driver", "prepare"):
        assert "kubealign.dev/processes" not in cluster.pods[cluster.name(name)]["metadata"]["labels"]
        settings = cluster.pods[cluster.name(name)]["spec"]["containers"][0]["env"]
        assert "companions" not in next(each["value"] for each in settings if each["name"] == ENV_SETTINGS)


def test_a_group_is_ready_when_all_of_its_pods_are() -> None:
    cluster = running(gpu_job())
    cluster.run(cluster.name("trainer-2"), ready=False)
    cluster.settle()
    assert cluster.counted("trainer") == (4, 2)


def test_a_failed_pod_restarts_all_pods_of_its_group() -> None:
    cluster = running(gpu_job())
    cluster.pass_time(100)
    cluster.end(cluster.name("trainer-2"), 137, "trainer-3 was killed by SIGKILL")
    rendered = cluster.step()
    assert cluster.job["status"]["restarts"] == 1
    assert [pod.name for pod in rendered.delete] == [cluster.name("trainer-0")]
    assert "trainer-3 was killed by SIGKILL" in cluster.message


def test_a_suspended_job_may_get_other_pods() -> None:
    job = gpu_job()
    cluster = running(job)
    cluster.job["spec"]["suspend"] = True
    for _ in range(6):
        cluster.settle()
        cluster.finish_leaving()
    assert cluster.phase == "Suspended"
    cluster.job["spec"]["trainer"]["processesPerPod"] = 4
    cluster.job["spec"]["suspend"] = False
    cluster.settle()
    cluster.serve()
    cluster.settle()
    assert trainers(cluster) == ["trainer-0"]
    assert len(cluster.settings("trainer-0")["companions"]) == 3


def test_a_template_of_the_platform_that_changes_replaces_no_pod() -> None:
    cluster = running(gpu_job())
    created = list(cluster.made)
    cluster.job["spec"]["trainer"]["podTemplate"] = gpus(4)
    cluster.settle()
    assert cluster.made == created
    # The next attempt of the group has the new size.
    cluster.pass_time(100)
    cluster.end(cluster.name("trainer-0"), 1, "lost")
    cluster.settle()
    cluster.finish_leaving()
    cluster.pass_time(100)
    cluster.settle()
    # The failed pod of the former size is kept for its log.
    assert [name for name in cluster.pods if "trainer" in name] == [
        "two-ranks-trainer-0-0",
        "two-ranks-trainer-0-1",
    ]
    assert len(cluster.settings("trainer-0")["companions"]) == 3


def test_a_worker_in_one_pod_counts_once() -> None:
    job = shared_workers()
    job["spec"]["rollout"]["processesPerPod"] = 2
    cluster = running(job)
    assert [name for name in cluster.short_names() if name.startswith("rollout")] == [
        "rollout-0",
        "rollout-1",
    ]
    assert cluster.settings("rollout-1")["companions"] == [{"name": "rollout-1-r1", "rank": 1}]
    assert cluster.counted("rollout") == (2, 2)
    assert cluster.job["status"]["rolloutReplicas"] == 2


def test_gpus_that_do_not_divide_the_ranks_are_told_before_any_pod() -> None:
    job = gpu_job()
    job["spec"]["trainer"]["ranks"] = 3
    cluster = Cluster(job)
    cluster.settle()
    assert not cluster.made
    assert "spec.trainer.processesPerPod" in cluster.message
    assert "the 2 GPUs in the limits of a pod do not divide the 3 ranks" in cluster.message
