"""A job whose rollout workers run in the trainer's pods."""

from support.rendering.cluster import Cluster
from support.rendering.jobs import with_trainer


def test_no_rollout_pods_are_created_and_trainer_pods_are_counted() -> None:
    cluster = Cluster(with_trainer())
    cluster.start()
    assert cluster.phase == "Running"
    assert not [name for name in cluster.short_names() if name.startswith("rollout")]
    status = cluster.job["status"]
    assert status["rolloutReplicas"] == 2
    assert status["selector"] == (
        f"kubealign.dev/job-uid={cluster.job['metadata']['uid']},kubealign.dev/group=trainer"
    )
    assert {role["name"]: (role["replicas"], role["ready"]) for role in status["roles"]}["trainer"] == (2, 2)


def test_a_lost_rank_restarts_the_group_and_all_workers_return() -> None:
    cluster = Cluster(with_trainer())
    cluster.start()
    cluster.end(cluster.name("trainer-1"), 137)
    cluster.settle()
    cluster.finish_leaving()
    cluster.pass_time(60)
    cluster.settle()
    cluster.serve()
    cluster.settle()
    assert cluster.phase == "Running"
    assert cluster.job["status"]["restarts"] == 1
    assert cluster.job["status"]["rolloutReplicas"] == 2
