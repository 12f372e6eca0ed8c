"""Deleted pods that a finalizer keeps: replaced once they have ended, reported, and not deleted again."""

import pytest

from support.rendering.cluster import Cluster
from support.rendering.jobs import sft, two_ranks

_FINALIZER = "example.org/audit"
_KEPT = f"the deleted pod two-ranks-trainer-0-0 is kept by the finalizer {_FINALIZER}"


def _running() -> Cluster:
    cluster = Cluster(two_ranks(lifecycle={"forceDeleteLostPods": True}))
    cluster.start()
    _keep(cluster, "trainer-0")
    return cluster


def _keep(cluster: Cluster, process: str) -> None:
    cluster.pods[cluster.name(process)]["metadata"]["finalizers"] = [_FINALIZER]


def test_the_successor_of_an_ended_pod_starts_while_a_finalizer_keeps_the_old_object() -> None:
    cluster = _running()
    cluster.end("two-ranks-trainer-1-0", 1)
    cluster.settle()
    # The other rank is told to stop, but its node has not confirmed the end.
    cluster.pass_time(10)
    assert cluster.settle().create == ()
    assert "two-ranks-trainer-0-1" not in cluster.made
    cluster.finish_leaving()
    plan = cluster.settle()
    assert {"two-ranks-trainer-0-1", "two-ranks-trainer-1-1"} <= set(cluster.pods)
    assert "two-ranks-trainer-0-0" in cluster.pods
    assert plan.delete == ()
    cluster.serve()
    cluster.settle()
    assert (cluster.phase, cluster.message) == ("Running", "")
    cluster.pass_time(61)
    plan = cluster.settle()
    assert (plan.delete, plan.create) == ((), ())
    assert plan.requeue_after is not None and plan.requeue_after > 50 * 86_400
    assert cluster.message == _KEPT
    assert cluster.condition("Ready")["status"] == "True"
    assert cluster.counted("trainer") == (2, 2)
    assert cluster.job["status"]["restarts"] == 1
    cluster.vanish("two-ranks-trainer-0-0")
    cluster.settle()
    assert cluster.message == ""


@pytest.mark.parametrize("process", ["trainer-0", "driver", "nats"])
def test_a_pod_that_was_deleted_from_outside_is_replaced_under_another_name(process: str) -> None:
    cluster = Cluster(sft())
    cluster.start()
    _keep(cluster, process)
    cluster.delete(cluster.name(process))
    cluster.finish_leaving()
    cluster.settle()
    assert {f"sft-{process}-0", f"sft-{process}-1"} <= set(cluster.pods)
    assert cluster.job["status"]["restarts"] == 0


def test_a_pod_whose_node_has_not_confirmed_its_end_is_waited_for() -> None:
    cluster = _running()
    cluster.delete("two-ranks-trainer-0-0")
    cluster.settle()
    cluster.vanish("two-ranks-driver-0")
    cluster.settle()
    cluster.serve()
    cluster.pass_time(200)
    # It is force-deleted once; the API server has no word of its containers and keeps the object.
    assert [deletion.name for deletion in cluster.step().delete] == [
        "two-ranks-trainer-0-0",
        "two-ranks-trainer-1-0",
    ]
    cluster.pass_time(61)
    plan = cluster.settle()
    assert (plan.delete, plan.create) == ((), ())
    # Nothing changes by time alone but the credentials, whose renewal is due in two months.
    assert plan.requeue_after is not None and plan.requeue_after > 50 * 86_400
    assert cluster.message == f"trainer-0 waits for its successor: {_KEPT}"
    assert cluster.condition("Ready")["reason"] == "Finalizer"
    cluster.vanish("two-ranks-trainer-0-0")
    cluster.settle()
    assert {"trainer-0", "trainer-1"} <= set(cluster.short_names())
    assert "finalizer" not in cluster.message


def test_a_finalizer_that_is_removed_in_time_is_not_reported() -> None:
    cluster = _running()
    cluster.delete("two-ranks-trainer-0-0")
    cluster.settle()
    cluster.finish_leaving()
    plan = cluster.step()
    assert "finalizer" not in cluster.message
    # The next reconcile reports it.
    assert plan.requeue_after is not None


def test_a_process_waits_once_finalizers_keep_several_of_its_pods() -> None:
    cluster = Cluster(sft(lifecycle={"maxRestarts": 10}))
    cluster.start()
    for _ in range(5):
        _keep(cluster, "trainer-0")
        if cluster.pods[cluster.name("trainer-0")]["status"]["phase"] == "Running":
            cluster.end(cluster.name("trainer-0"), 1)
        cluster.settle()
        cluster.pass_time(61)
        plan = cluster.settle()
        assert plan.delete == ()
        cluster.serve()
        cluster.settle()
    assert [name for name in cluster.pods if "trainer" in name] == [f"sft-trainer-0-{i}" for i in range(4)]
    assert cluster.message == (
        "trainer-0 waits for its successor: the deleted pod sft-trainer-0-0 is kept by the finalizer "
        f"{_FINALIZER}"
    )
    for name in [name for name in cluster.pods if "trainer" in name]:
        cluster.vanish(name)
    cluster.settle()
    assert cluster.made[-1] == "sft-trainer-0-4"


def test_a_suspended_job_resumes_and_names_the_finalizer() -> None:
    cluster = _running()
    cluster.job["spec"]["suspend"] = True
    for _ in range(3):
        cluster.settle()
        cluster.finish_leaving()
    cluster.pass_time(61)
    plan = cluster.settle()
    assert cluster.phase == "Suspended"
    assert cluster.message.endswith(_KEPT)
    assert (plan.delete, plan.requeue_after) == ((), None)
    cluster.job["spec"]["suspend"] = False
    cluster.start()
    assert cluster.phase == "Running"
    assert {"two-ranks-trainer-0-0", "two-ranks-trainer-0-1"} <= set(cluster.pods)


def test_a_retry_does_not_wait_for_a_finalizer_nor_fail_by_the_old_exit_code() -> None:
    cluster = _running()
    cluster.end("two-ranks-trainer-0-0", 78, "no such column")
    cluster.settle()
    assert cluster.phase == "Failed"
    cluster.job["metadata"]["annotations"] = {"kubealign.dev/retry": "a"}
    for _ in range(3):
        cluster.settle()
        cluster.finish_leaving()
    cluster.start()
    assert cluster.phase == "Running"
    assert {"two-ranks-trainer-0-0", "two-ranks-trainer-0-1"} <= set(cluster.pods)


def test_pods_of_an_older_operator_are_recognised_by_label() -> None:
    cluster = Cluster(sft())
    cluster.start()
    for name in list(cluster.pods):
        pod = cluster.pods.pop(name)
        pod["metadata"]["name"] = name.removesuffix("-0")
        cluster.pods[pod["metadata"]["name"]] = pod
    cluster.made.clear()
    plan = cluster.settle()
    assert (cluster.made, plan.delete, plan.create, cluster.message) == ([], (), (), "")
    cluster.pass_time(100)
    cluster.end("sft-trainer-0", 1)
    cluster.settle()
    cluster.pass_time(5)
    cluster.settle()
    assert cluster.made == ["sft-trainer-0-1"]
