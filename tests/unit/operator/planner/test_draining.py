"""Eviction of a trainer's pod: the driver saves first, and nothing else is lost by it."""

from support.rendering.cluster import Cluster
from support.rendering.jobs import shared_workers, two_ranks


def running() -> Cluster:
    cluster = Cluster(two_ranks())
    cluster.start()
    assert cluster.phase == "Running"
    return cluster


def evict(cluster: Cluster, process: str, reason: str = "EvictionByEvictionAPI") -> None:
    cluster.delete(cluster.name(process))
    cluster._condition(cluster.pods[cluster.name(process)], "DisruptionTarget", "True", reason)


def end_pod(cluster: Cluster, process: str) -> None:
    """Let the node end a pod that is being deleted."""
    cluster.end(cluster.name(process), 143)
    cluster.vanish(cluster.name(process))


def test_the_driver_saves_while_all_ranks_run() -> None:
    cluster = running()
    before = dict(cluster.pods)
    evict(cluster, "trainer-1")
    rendered = cluster.step()
    assert [(pod.name, pod.grace_seconds) for pod in rendered.delete] == [("two-ranks-driver-0", None)]
    assert cluster.message == (
        "trainer-1 was evicted through the eviction API, as by a drain of its node: the driver saves a "
        "checkpoint"
    )
    # No rank is stopped as long as the driver needs it.
    assert not cluster.step().delete and set(cluster.pods) == set(before)
    end_pod(cluster, "driver")
    deleted = [pod.name for pod in cluster.step().delete]
    assert deleted == ["two-ranks-trainer-0-0"]
    end_pod(cluster, "trainer-1")
    cluster.finish_leaving()
    cluster.settle()
    assert {"two-ranks-trainer-0-1", "two-ranks-trainer-1-1"} <= set(cluster.made)
    assert "driver" in cluster.short_names()
    assert cluster.job["status"]["restarts"] == 0
    cluster.serve()
    cluster.settle()
    assert (cluster.phase, cluster.message) == ("Running", "")


def test_the_save_has_the_grace_period_of_the_pod() -> None:
    cluster = running()
    evict(cluster, "trainer-1")
    rendered = cluster.step()
    assert rendered.requeue_after is not None and rendered.requeue_after <= 36
    cluster.pass_time(36)
    # The pod's time is up, although the driver has not ended: the group starts again.
    assert [pod.name for pod in cluster.step().delete] == ["two-ranks-trainer-0-0"]


def test_a_lost_node_is_not_asked_to_save() -> None:
    cluster = running()
    evict(cluster, "trainer-1", "DeletionByTaintManager")
    assert [pod.name for pod in cluster.step().delete] == ["two-ranks-trainer-0-0"]


def test_the_eviction_of_a_driver_at_the_same_time_leaves_the_ranks() -> None:
    cluster = running()
    evict(cluster, "driver")
    evict(cluster, "trainer-0")
    assert not cluster.step().delete
    end_pod(cluster, "driver")
    assert [pod.name for pod in cluster.step().delete] == ["two-ranks-trainer-1-0"]


def test_a_job_that_has_not_run_yet_saves_nothing() -> None:
    cluster = Cluster(two_ranks())
    cluster.settle()
    cluster.serve()
    cluster.end(cluster.name("prepare"), 0)
    cluster.settle()
    cluster.serve()
    evict(cluster, "trainer-1")
    cluster.step()
    assert "saves" not in cluster.message


def test_trainers_wait_for_the_driver_before_they_end() -> None:
    cluster = running()
    (container,) = cluster.pods[cluster.name("trainer-0")]["spec"]["containers"]
    command = container["lifecycle"]["preStop"]["exec"]["command"]
    assert command[-4:] == [
        "kubealign_services.runtime.process.wait_for_driver",
        "driver.two-ranks-peers.team.svc",
        "8081",
        "30",
    ]
    (container,) = cluster.pods[cluster.name("driver")]["spec"]["containers"]
    assert "lifecycle" not in container


def budgets(cluster: Cluster) -> dict[str, object]:
    return {name: kind for kind, name in cluster.objects if kind == "PodDisruptionBudget"}


def test_disruptions_take_one_pod_of_a_group_at_a_time() -> None:
    cluster = Cluster(two_ranks())
    created = cluster.step().create
    (budget,) = [item for item in created if item["kind"] == "PodDisruptionBudget"]
    assert budget["metadata"]["name"] == "two-ranks-trainer"
    assert budget["spec"]["minAvailable"] == 1
    uid = cluster.job["metadata"]["uid"]
    assert budget["spec"]["selector"] == {
        "matchLabels": {"kubealign.dev/job-uid": uid, "kubealign.dev/group": "trainer"},
        "matchExpressions": [{"key": "kubealign.dev/processes", "operator": "DoesNotExist"}],
    }


def test_disruptions_leave_all_but_one_of_the_smallest_number_of_workers() -> None:
    job = shared_workers()
    assert "PodDisruptionBudget" not in {item["kind"] for item in Cluster(job).step().create}
    del job["status"]
    job["spec"]["rollout"] |= {"replicas": 5, "minReplicas": 3}
    (budget,) = [item for item in Cluster(job).step().create if item["kind"] == "PodDisruptionBudget"]
    # A worker has two pods.
    assert (budget["metadata"]["name"], budget["spec"]["minAvailable"]) == ("shared-rollout", 4)
    del job["status"]
    job["spec"]["rollout"]["processesPerPod"] = 2
    (budget,) = [item for item in Cluster(job).step().create if item["kind"] == "PodDisruptionBudget"]
    assert (budget["metadata"]["name"], budget["spec"]["minAvailable"]) == ("shared-rollout-2", 2)
    assert budget["spec"]["selector"]["matchLabels"]["kubealign.dev/processes"] == "2"
