"""References and rewards with several pods: each pod starts, restarts and counts by itself."""

import json

from support.rendering.cluster import Cluster
from support.rendering.jobs import scorer_replicas

SCORERS = ["reference-0", "reference-1", "reward-exact-0", "reward-exact-1"]


def running() -> Cluster:
    cluster = Cluster(scorer_replicas())
    cluster.start()
    assert cluster.phase == "Running"
    return cluster


def test_each_replica_has_a_pod_with_its_own_name_and_the_settings_of_the_first() -> None:
    cluster = running()
    assert [name for name in cluster.short_names() if name.startswith("re")] == SCORERS
    assert (cluster.counted("reference"), cluster.counted("reward-exact")) == ((2, 2), (2, 2))
    for group in ("reference", "reward-exact"):
        first, second = (cluster.pods[cluster.name(f"{group}-{replica}")] for replica in (0, 1))
        assert second["spec"]["hostname"] == f"{group}-1"
        assert json.dumps(second["spec"]).replace(f"{group}-1", f"{group}-0") == json.dumps(first["spec"])
        assert second["metadata"]["labels"]["kubealign.dev/group"] == group


def test_the_job_runs_once_every_replica_is_ready() -> None:
    cluster = Cluster(scorer_replicas())
    cluster.settle()
    cluster.serve()
    cluster.end(cluster.name("prepare"), 0)
    cluster.settle()
    late = cluster.name("reward-exact-1")
    for name, pod in cluster.pods.items():
        if pod["status"]["phase"] == "Pending" and name != late:
            cluster.run(name)
    cluster.settle()
    assert cluster.phase == "Starting"
    assert cluster.counted("reward-exact") == (2, 1)
    assert cluster.message == "waits for reward-exact-1 to be ready"
    cluster.run(late)
    cluster.settle()
    assert cluster.phase == "Running"


def test_a_failed_replica_restarts_alone_while_the_job_runs() -> None:
    cluster = running()
    cluster.pass_time(100)
    cluster.end(cluster.name("reference-1"), 1, "RuntimeError: out of luck")
    rendered = cluster.step()
    assert (cluster.phase, list(rendered.delete)) == ("Running", [])
    assert cluster.job["status"]["attempts"] == {"reference-1": 1}
    assert "starting reference-1 again (1 of 10 restarts used)" in cluster.message
    assert cluster.counted("reference") == (2, 1)
    cluster.pass_time(60)
    cluster.settle()
    assert cluster.made[-1] == cluster.name("reference-1")
    cluster.serve()
    cluster.settle()
    assert cluster.counted("reference") == (2, 2)
