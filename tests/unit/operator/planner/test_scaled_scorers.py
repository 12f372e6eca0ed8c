"""Scorers in a cluster, whose number changes while the job runs, with and without a queue."""

from dataclasses import replace

from support.rendering.cluster import Cluster
from support.rendering.jobs import PLATFORM, QUEUE, alike_scorers, scorer_replicas

REWARD, REFERENCE = "reward-exact", "reference"


def scorers(cluster: Cluster) -> list[str]:
    return sorted(name for name in cluster.short_names() if name.startswith((REWARD, REFERENCE)))


def pod_uids(cluster: Cluster) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in cluster.pods.items()}


def set_replicas(cluster: Cluster, rewards: int, references: int = 2) -> None:
    cluster.job["spec"]["rewards"][0]["replicas"] = rewards
    cluster.job["spec"]["reference"]["replicas"] = references


def test_scorers_are_added_and_removed_by_themselves() -> None:
    cluster = Cluster(scorer_replicas())
    cluster.start()
    before = pod_uids(cluster)
    gone = cluster.name("reference-1")
    set_replicas(cluster, 3, 1)
    decision = cluster.step()
    assert [deletion.name for deletion in decision.delete] == ["scored-reference-1-0"]
    cluster.finish_leaving()
    cluster.settle()
    assert (cluster.phase, cluster.counted(REWARD), cluster.counted(REFERENCE)) == ("Running", (3, 2), (1, 1))
    cluster.serve()
    cluster.settle()
    assert scorers(cluster) == ["reference-0", "reward-exact-0", "reward-exact-1", "reward-exact-2"]
    assert cluster.counted(REWARD) == (3, 3)
    assert cluster.job["status"]["restarts"] == 0
    others = {name: uid for name, uid in before.items() if name != gone}
    assert others.items() <= pod_uids(cluster).items()


def test_scorers_beyond_the_quota_of_a_queue_wait_for_the_next_admission() -> None:
    job = scorer_replicas()
    job["metadata"]["labels"] = QUEUE
    cluster = Cluster(job, platform=replace(PLATFORM, uses_kueue=True))
    cluster.settle()
    (workload,) = cluster.workloads
    cluster.admit(workload)
    # The job starts with the scorers of its quota.
    set_replicas(cluster, 3)
    cluster.start()
    assert cluster.phase == "Running"
    assert scorers(cluster) == ["reference-0", "reference-1", "reward-exact-0", "reward-exact-1"]
    assert cluster.message.startswith("reward-exact-2: queue align of Kueue has admitted the job with fewer")
    set_replicas(cluster, 1, 3)
    cluster.step()
    cluster.finish_leaving()
    cluster.settle()
    assert scorers(cluster) == ["reference-0", "reference-1", "reward-exact-0"]
    assert cluster.message.startswith("reference-2: queue align")


def test_running_scorers_keep_the_quota_of_a_pod_set_that_groups_share() -> None:
    job = alike_scorers(8)
    job["spec"]["rewards"][1]["replicas"] = 2
    job["metadata"]["labels"] = QUEUE
    cluster = Cluster(job, platform=replace(PLATFORM, uses_kueue=True))
    cluster.settle()
    (workload,) = cluster.workloads
    sets = cluster.workloads[workload]["spec"]["podSets"]
    assert max(each["count"] for each in sets) >= 8, "the rewards share a set"
    cluster.admit(workload)
    cluster.start()
    cluster.job["spec"]["rewards"][0]["replicas"] = 2
    cluster.settle()
    running = [name for name in cluster.short_names() if name.startswith("reward-")]
    assert sorted(running) == sorted([*(f"reward-r{index}-0" for index in range(8)), "reward-r1-1"])
    assert cluster.message.startswith("reward-r0-1: queue align")
