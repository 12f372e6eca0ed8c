"""Pods of others with the labels of a job: they are neither deleted nor counted."""

import copy
from typing import Any

import pytest

from support.rendering.cluster import Cluster
from support.rendering.jobs import UID, shared_workers, two_ranks

Json = dict[str, Any]


def _add_copy(cluster: Cluster, process: str, name: str, references: list[Json]) -> Json:
    """Add a copy of a process's pod with the same labels and another owner."""
    pod = copy.deepcopy(cluster.pods[cluster.name(process)])
    pod["metadata"] |= {"name": name, "uid": f"uid-{name}", "ownerReferences": references}
    cluster.pods[name] = pod
    return pod


_OWNER = {"apiVersion": "kubealign.dev/v1alpha1", "kind": "AlignmentJob", "name": "two-ranks", "uid": UID}
_OTHERS: dict[str, list[Json]] = {
    "nobody": [],
    "owned, not controlled": [_OWNER],
    "a kind of the same name": [{**_OWNER, "apiVersion": "example.org/v1", "controller": True}],
    "a ReplicaSet": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "uid": UID, "controller": True}],
}


@pytest.mark.parametrize("owner", list(_OTHERS))
@pytest.mark.parametrize("process", ["driver", "trainer-0", "nats"])
@pytest.mark.parametrize("code", [None, 0, 1, 78])
def test_a_foreign_pod_with_the_labels_of_a_process_changes_nothing(
    owner: str, process: str, code: int | None
) -> None:
    cluster = Cluster(two_ranks())
    cluster.start()
    status, pods = copy.deepcopy(cluster.job["status"]), set(cluster.pods)
    _add_copy(cluster, process, "stranger", _OTHERS[owner])
    if code is not None:
        cluster.end("stranger", code)
    plan = cluster.settle()
    assert (plan.delete, plan.stop, plan.create) == ((), (), ())
    assert cluster.job["status"] == status
    assert set(cluster.pods) == {*pods, "stranger"}


def test_a_foreign_worker_is_not_counted_and_outlives_job_and_suspension() -> None:
    cluster = Cluster(shared_workers())
    cluster.start()
    _add_copy(cluster, "rollout-0", "stranger", [])
    cluster.settle()
    assert cluster.job["status"]["rolloutReplicas"] == 2
    cluster.job["spec"]["suspend"] = True
    for _ in range(4):
        cluster.settle()
        cluster.finish_leaving()
    assert cluster.phase == "Suspended"
    assert list(cluster.pods) == ["stranger"]


def test_a_foreign_pod_of_the_same_name_is_named_in_the_message() -> None:
    cluster = Cluster(two_ranks())
    cluster.step()
    del cluster.pods["two-ranks-nats-0"]["metadata"]["ownerReferences"]
    cluster.settle()
    assert "waits until the pod two-ranks-nats-0, which is not this job's, is gone" in cluster.message
    assert "two-ranks-nats-0" in cluster.pods
