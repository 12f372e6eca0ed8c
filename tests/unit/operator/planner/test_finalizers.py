"""Deleted pods that a finalizer keeps: reported, and not deleted again."""

import pytest

from support.rendering.cluster import Cluster
from support.rendering.jobs import two_ranks

_FINALIZER = "example.org/audit"
_KEPT = f"the deleted pod two-ranks-trainer-0 is kept by the finalizer {_FINALIZER}"


def _running() -> Cluster:
    cluster = Cluster(two_ranks(lifecycle={"forceDeleteLostPods": True}))
    cluster.start()
    cluster.pods["two-ranks-trainer-0"]["metadata"]["finalizers"] = [_FINALIZER]
    return cluster


@pytest.mark.parametrize("node_confirms", [True, False])
def test_a_kept_pod_is_reported_and_not_deleted_again(node_confirms: bool) -> None:
    cluster = _running()
    cluster.delete("two-ranks-trainer-0")
    cluster.settle()
    if node_confirms:
        cluster.finish_leaving()
    cluster.pass_time(200)
    # A node that has not confirmed the deletion: the pod is force-deleted once.
    forced = [deletion.name for deletion in cluster.step().delete]
    assert forced == ([] if node_confirms else ["two-ranks-trainer-0", "two-ranks-trainer-1"])
    cluster.finish_leaving()
    cluster.pass_time(61)
    plan = cluster.settle()
    assert (plan.delete, plan.create) == ((), ())
    # Nothing changes by time alone but the credentials, whose renewal is due in two months.
    assert plan.requeue_after is not None and plan.requeue_after > 50 * 86_400
    assert cluster.message == f"trainer-0 waits for its successor: {_KEPT}"
    assert cluster.condition("Ready")["reason"] == "Finalizer"
    del cluster.pods["two-ranks-trainer-0"]
    cluster.settle()
    assert {"trainer-0", "trainer-1"} <= set(cluster.short_names())
    assert "finalizer" not in cluster.message


def test_a_finalizer_that_is_removed_in_time_is_not_reported() -> None:
    cluster = _running()
    cluster.delete("two-ranks-trainer-0")
    cluster.settle()
    cluster.finish_leaving()
    plan = cluster.step()
    assert "finalizer" not in cluster.message
    # The next reconcile reports it.
    assert plan.requeue_after is not None


def test_a_suspension_names_the_finalizer() -> None:
    cluster = _running()
    cluster.job["spec"]["suspend"] = True
    for _ in range(3):
        cluster.settle()
        cluster.finish_leaving()
    cluster.pass_time(61)
    plan = cluster.settle()
    assert (cluster.phase, cluster.message) == ("Suspending", f"suspending: {_KEPT}")
    assert (plan.delete, plan.requeue_after) == ((), None)
