"""References and rewards whose replicas have several pods: a replica starts, restarts and counts as one."""

from support.rendering.cluster import Cluster
from support.rendering.jobs import UID, sharded_scorers

#: Pods of each replica, by rank.
REPLICAS = {
    "reference-0": ["reference-0", "reference-0-r1"],
    "reference-1": ["reference-1", "reference-1-r1"],
    "reward-exact-0": ["reward-exact-0", "reward-exact-0-r1", "reward-exact-0-r2"],
}
PODS = [name for pods in REPLICAS.values() for name in pods]


def running() -> Cluster:
    cluster = Cluster(sharded_scorers())
    cluster.start()
    assert cluster.phase == "Running"
    return cluster


def test_each_replica_has_its_own_rendezvous_and_counts_once() -> None:
    cluster = running()
    assert [name for name in cluster.short_names() if name.startswith("re")] == PODS
    for replica, pods in REPLICAS.items():
        for rank, name in enumerate(pods):
            pod = cluster.settings(name)
            assert (pod.get("rank", 0), pod["world_size"]) == (rank, len(pods))
            assert pod["rendezvous"].startswith(f"{replica}.scored-peers.team.svc:")
            assert pod.get("serves", True) is (rank == 0)
    assert (cluster.counted("reference"), cluster.counted("reward-exact")) == ((2, 2), (1, 1))


def test_the_scale_selector_does_not_ask_for_ranks_of_rollout_workers() -> None:
    """The rollout workers of this job have one pod each, without the label of a rank."""
    status = running().job["status"]
    assert status["rolloutReplicas"] == 1
    assert status["selector"] == f"kubealign.dev/job-uid={UID},kubealign.dev/group=rollout"


def test_a_failed_rank_restarts_its_replica_and_no_other() -> None:
    cluster = running()
    cluster.pass_time(100)
    cluster.end("scored-reference-0-r1-0", 1, "RuntimeError: connection reset")
    rendered = cluster.step()
    assert cluster.job["status"]["attempts"] == {"reference-0": 1}
    assert cluster.job["status"]["restarts"] == 1
    assert [pod.name for pod in rendered.delete] == ["scored-reference-0-0"]
    assert "starting reference-0 again (1 of 10 restarts used)" in cluster.message
    cluster.settle()
    cluster.finish_leaving()
    cluster.pass_time(1)
    cluster.settle()
    assert cluster.made[-2:] == ["scored-reference-0-1", "scored-reference-0-r1-1"]
    cluster.serve()
    cluster.settle()
    assert cluster.counted("reference") == (2, 2)
