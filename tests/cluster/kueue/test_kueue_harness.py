"""Behaviour of the real Kueue that the operator's tests rely on, with Workloads of no known kind of job."""

from typing import Any

import pytest
from kubernetes import client

from cluster.support.control_plane import ControlPlane
from cluster.support.kueue import KueueManager, QueueRefused, Queues, pod_set
from support.doc_blocks import ROOT

_GPU = "nvidia.com/gpu"
_TEN_GPUS = {"cpu": "100", "memory": "1Ti", _GPU: "10"}


def gpu_pods(count: int, *, min_count: int | None = None) -> dict[str, object]:
    """Return a set of pods with a GPU each."""
    return pod_set("main", count, {"cpu": "1", "memory": "1Gi", _GPU: "1"}, min_count=min_count)


def gpus(flavor: str, count: int) -> dict[str, dict[str, int]]:
    """Return the quota that `gpu_pods(count)` reserves."""
    return {flavor: {"cpu": count, "memory": count << 30, _GPU: count}}


class Pool:
    """One queue of a namespace, with quotas of one flavor."""

    def __init__(self, queues: Queues) -> None:
        self.queues = queues
        self.workloads = queues.workloads
        self.flavor = queues.add_flavor()
        self.cluster_queue = queues.add_cluster_queue("main", {self.flavor: _TEN_GPUS})
        self.queue = queues.add_local_queue("main", self.cluster_queue)

    def add(self, name: str, count: int, *, priority: int = 0) -> None:
        """Create a Workload of pods with a GPU each."""
        self.workloads.add(name, self.queue, gpu_pods(count), priority=priority)

    def wait_for_gpus(self, count: int) -> None:
        """Wait until the queue reserves exactly the quota of this many pods with a GPU."""
        self.queues.wait_for_usage(self.cluster_queue, gpus(self.flavor, count))


@pytest.fixture
def pool(queues: Queues) -> Pool:
    return Pool(queues)


def test_a_workload_of_no_known_kind_is_admitted_with_flavors(pool: Pool) -> None:
    pool.add("one", 4)
    pool.workloads.wait_for_admission("one")
    assert pool.workloads.pod_counts("one") == {"main": 4}
    assert pool.workloads.flavors("one") == {"main": dict.fromkeys(_TEN_GPUS, pool.flavor)}
    pool.wait_for_gpus(4)
    pool.workloads.delete("one")
    pool.queues.wait_for_no_usage(pool.cluster_queue)


def test_a_workload_over_quota_is_admitted_when_the_quota_is_raised(pool: Pool) -> None:
    pool.add("large", 11)
    pool.workloads.wait_for_refusal("large", "insufficient quota for nvidia.com/gpu")
    assert pool.queues.usage(pool.cluster_queue) == {}
    pool.queues.set_quotas(pool.cluster_queue, {pool.flavor: {**_TEN_GPUS, _GPU: "11"}})
    pool.workloads.wait_for_admission("large")
    pool.wait_for_gpus(11)


def test_a_finished_workload_releases_its_quota(pool: Pool) -> None:
    pool.add("first", 6)
    pool.workloads.wait_for_admission("first")
    pool.add("second", 6)
    pool.workloads.wait_for_refusal("second", "insufficient unused quota for nvidia.com/gpu")
    pool.workloads.finish("first")
    pool.workloads.wait_for_admission("second")
    pool.wait_for_gpus(6)
    # The record of the admission stays.
    assert pool.workloads.pod_counts("first") == {"main": 6}


def test_the_quota_of_a_preempted_workload_moves_when_its_owner_returns_it(pool: Pool) -> None:
    pool.add("low", 6)
    pool.workloads.wait_for_admission("low")
    pool.add("high", 6, priority=100)
    pool.workloads.wait_for_condition("low", "Evicted", "Preempted")
    pool.workloads.wait_for_refusal("high", "Pending the preemption of 1 workload(s)")
    # Kueue cannot know when the pods of an unknown kind are gone.
    assert pool.workloads.is_true("low", "QuotaReserved")
    assert pool.workloads.pod_counts("low") == {"main": 6}
    pool.wait_for_gpus(6)
    pool.workloads.return_admission("low")
    assert pool.workloads.pod_counts("low") == {}
    pool.workloads.wait_for_admission("high")
    pool.workloads.wait_for_refusal("low", "insufficient unused quota for nvidia.com/gpu")
    pool.workloads.delete("high")
    pool.workloads.wait_for_admission("low")
    assert pool.workloads.condition("low", "Evicted")["status"] == "False"
    pool.wait_for_gpus(6)


def test_a_deactivated_workload_waits_until_it_is_active_again(pool: Pool) -> None:
    pool.add("paused", 6)
    pool.workloads.wait_for_admission("paused")
    pool.workloads.patch("paused", {"spec": {"active": False}})
    pool.workloads.wait_for_condition("paused", "Evicted", "Deactivated")
    # Unlike a preemption, a deactivation releases the quota before the owner has returned the admission.
    pool.queues.wait_for_no_usage(pool.cluster_queue)
    assert pool.workloads.pod_counts("paused") == {"main": 6}
    pool.workloads.return_admission("paused")
    assert pool.workloads.condition("paused", "Requeued")["status"] == "False"
    pool.workloads.patch("paused", {"spec": {"active": True}})
    pool.workloads.wait_for_admission("paused")
    assert pool.workloads.condition("paused", "Requeued")["reason"] == "Reactivated"


def test_fewer_pods_are_admitted_down_to_the_minimum(pool: Pool) -> None:
    fixed = pod_set("driver", 1, {"cpu": "1", "memory": "1Gi"})
    pool.workloads.add("elastic", pool.queue, fixed, gpu_pods(16, min_count=2))
    pool.workloads.wait_for_admission("elastic")
    assert pool.workloads.pod_counts("elastic") == {"driver": 1, "main": 10}
    pool.workloads.add("too-large", pool.queue, gpu_pods(10, min_count=2))
    pool.workloads.wait_for_refusal("too-large", "insufficient unused quota for nvidia.com/gpu")


def test_reclaimable_pods_release_quota_and_do_not_come_back(pool: Pool) -> None:
    pool.add("one", 6)
    pool.workloads.wait_for_admission("one")
    pool.workloads.write_status("one", reclaimablePods=[{"name": "main", "count": 4}])
    pool.wait_for_gpus(2)
    with pytest.raises(QueueRefused, match="cannot be less then 4"):
        pool.workloads.write_status("one", reclaimablePods=[{"name": "main", "count": 3}])


def test_pod_sets_are_immutable_while_quota_is_reserved(pool: Pool) -> None:
    pool.add("waiting", 11)
    pool.workloads.wait_for_refusal("waiting", "insufficient quota for nvidia.com/gpu")
    pool.workloads.patch("waiting", {"spec": {"podSets": [gpu_pods(5)]}})
    pool.workloads.wait_for_admission("waiting")
    with pytest.raises(QueueRefused, match="field is immutable"):
        pool.workloads.patch("waiting", {"spec": {"podSets": [gpu_pods(4)]}})


def test_a_priority_class_change_reaches_the_workloads(pool: Pool) -> None:
    low = pool.queues.add_priority_class("low", 10)
    pool.workloads.add("one", pool.queue, gpu_pods(1), priority=10, priority_class=low)
    # Kueue changes only the Workloads that it has seen.
    pool.workloads.wait_for_admission("one")
    pool.queues.set_priority(low, 20)
    pool.queues.until(
        lambda: pool.workloads.all()["one"]["spec"]["priority"] == 20, "the priority of Workload one to be 20"
    )


def test_an_invalid_cluster_queue_is_refused_by_the_webhook(pool: Pool) -> None:
    negative = {pool.flavor: {_GPU: "-1"}}
    with pytest.raises(QueueRefused, match=r"vclusterqueue\.kb\.io.*must be greater than or equal to 0"):
        pool.queues.add_cluster_queue("negative", negative)


def test_an_older_version_is_served_through_the_conversion_webhook(
    pool: Pool, kueue_plane: ControlPlane
) -> None:
    shared = pool.queues.add_cluster_queue("shared", {pool.flavor: _TEN_GPUS}, cohortName="research")
    objects = client.CustomObjectsApi(kueue_plane.api)
    queue: Any = objects.get_cluster_custom_object("kueue.x-k8s.io", "v1beta1", "clusterqueues", shared)
    # The field has another name in this version.
    assert queue["spec"]["cohort"] == "research"


def test_a_killed_manager_continues_with_the_reserved_quota(pool: Pool, kueue: KueueManager) -> None:
    pool.add("first", 6)
    pool.workloads.wait_for_admission("first")
    kueue.kill()
    try:
        with pytest.raises(client.ApiException, match=r"mworkload\.kb\.io"):
            pool.add("second", 6)
    finally:
        kueue.start()
    pool.add("second", 6)
    pool.workloads.wait_for_refusal("second", "insufficient unused quota for nvidia.com/gpu")
    pool.workloads.finish("first")
    pool.workloads.wait_for_admission("second")


def test_pods_and_jobs_need_no_kueue(pool: Pool, kueue_plane: ControlPlane, kueue: KueueManager) -> None:
    container = {"name": "main", "image": "none"}
    spec = {"restartPolicy": "Never", "containers": [container]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "free"}, "spec": spec}
    kueue.kill()
    try:
        kueue_plane.kubectl.apply(pod, namespace=pool.queues.namespace)
        kueue_plane.kubectl.wait_for("pod/free", "condition=Ready", namespace=pool.queues.namespace)
    finally:
        kueue.start()
    assert pool.workloads.all() == {}


def test_kueue_accepts_the_queues_of_the_quick_start(kueue_plane: ControlPlane, kueue: KueueManager) -> None:
    manifests = (ROOT / "examples" / "queue" / "queues.yaml").read_text(encoding="utf-8")
    answer = kueue_plane.kubectl("apply", "--dry-run=server", "-o", "name", "-f", "-", stdin=manifests)
    kinds = {line.partition(".")[0] for line in answer.split()}
    assert kinds == {"resourceflavor", "clusterqueue", "localqueue", "workloadpriorityclass"}
