"""AlignmentJobs that MultiKueue dispatches from a manager cluster to a worker cluster, each with its own API
server, Kueue and operator. After each test no quota is in use in either.
"""

import base64
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from cluster.support import accounts
from cluster.support.behaviour import Behaviour, Exit, Json
from cluster.support.cluster_jobs import make_claims, process_of, rloo, sft, until_told
from cluster.support.control_plane import ControlPlane
from cluster.support.door import define
from cluster.support.kube_namespaces import temporary_namespace
from cluster.support.kueue import KueueManager, Queues
from cluster.support.operator_process import OperatorProcess
from cluster.support.simulated_kubelet import SimulatedKubelet
from cluster.support.team import Team
from kubealign.labels import PREBUILT_WORKLOAD_LABEL, QUEUE_LABEL, UID_LABEL
from support.doc_blocks import ROOT

#: Two control planes and two managers of Kueue take a minute to start.
pytestmark = pytest.mark.full

_EXAMPLES = ROOT / "examples" / "queue"
_GPU = "nvidia.com/gpu"
_QUEUE = "align"
_KUEUE_NAMESPACE = "kueue-system"
_PLATFORM = {"image": "none", "redisHost": "redis.none", "usesKueue": True}


def _gpu_template() -> Json:
    limits = {_GPU: 1, "cpu": "1", "memory": "1Gi"}
    return {"spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]}}


def _dispatched(job: Json) -> Json:
    """Return the job with the label of the queue, for MultiKueue."""
    metadata = {**job["metadata"], "labels": {QUEUE_LABEL: _QUEUE}}
    return {**job, "metadata": metadata, "spec": {**job["spec"], "managedBy": "kueue.x-k8s.io/multikueue"}}


def _trained(name: str, **spec: Any) -> Json:
    """Return an SFT job of MultiKueue whose two ranks have a GPU each."""
    return _dispatched(sft(name, trainer={"ranks": 2, "podTemplate": _gpu_template()}, **spec))


class ClusterTeam(Team):
    """The namespace of the jobs in one of the two clusters, with its ClusterQueue."""

    def __init__(self, control_plane: ControlPlane, queues: Queues, cluster_queue: str) -> None:
        super().__init__(control_plane, queues.namespace)
        self.queues = queues
        self.cluster_queue = cluster_queue

    def gpus_in_use(self) -> int:
        """Return the GPUs that the ClusterQueue has reserved."""
        usage = self.queues.usage(self.cluster_queue).values()
        return sum(int(resources.get(_GPU, 0)) for resources in usage)

    def workload(self) -> Json:
        """Return the only Workload of the namespace."""
        (workload,) = self.queues.workloads.all().values()
        return dict(workload)

    def set_suspended(self, name: str, suspended: bool) -> None:
        patch = f'{{"spec": {{"suspend": {str(suspended).lower()}}}}}'
        self.control_plane.kubectl("patch", "aj", name, "--type=merge", "-n", self.namespace, "-p", patch)

    def until_gone(self, name: str) -> None:
        """Wait until the job has gone with its pods and its Workload."""
        self.until(lambda: name not in self.phases(), f"{name} to be deleted")
        self.until(lambda: not self.pods() and not self.queues.workloads.all(), "its objects to be deleted")


@dataclass(frozen=True)
class Clusters:
    """The two clusters of a test."""

    manager: ClusterTeam
    worker: ClusterTeam
    nodes: SimulatedKubelet

    def until_running(self, name: str) -> None:
        """Wait until a job runs in the worker cluster, and is seen to run in the manager cluster."""
        self.worker.until_phase(name, "Running")
        self.manager.until_phase(name, "Running")
        self.worker.until(lambda: self.worker.newest_pod(name, "driver") is not None, "the driver's pod")

    def until_quota_is_free(self) -> None:
        for team in (self.manager, self.worker):
            team.queues.wait_for_no_usage(team.cluster_queue)


@pytest.fixture(scope="module")
def manager_plane(kueue: KueueManager, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Kubernetes API of the manager cluster, with a Kueue that reaches the cluster of `kueue`."""
    with ExitStack() as stack:
        plane = stack.enter_context(ControlPlane(tmp_path_factory.mktemp("manager-plane")))
        define(plane)
        folder = tmp_path_factory.mktemp("manager-kueue")
        stack.enter_context(KueueManager(plane, folder, multikueue=True))
        worker = kueue.control_plane
        worker.kubectl.apply(*_example("multikueue-worker.yaml"))
        token = accounts.token(worker, _KUEUE_NAMESPACE, "multikueue")
        access = accounts.kubeconfig(worker, folder / "worker.kubeconfig", token).read_bytes()
        plane.kubectl.apply(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": "worker", "namespace": _KUEUE_NAMESPACE},
                "data": {"kubeconfig": base64.b64encode(access).decode()},
            }
        )
        yield plane


@pytest.fixture(scope="module")
def shared_clusters(
    manager_plane: ControlPlane,
    kueue: KueueManager,
    kueue_nodes: SimulatedKubelet,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Clusters]:
    """Both clusters with an operator, and a namespace of the same name with queues."""
    worker_plane = kueue.control_plane
    with temporary_namespace(worker_plane) as namespace, ExitStack() as stack:
        manager_plane.kubectl.create_namespace(namespace)
        queues = Queues(worker_plane, namespace)
        quota = {queues.add_flavor(): {"cpu": "100", "memory": "1Ti", _GPU: "4"}}
        worker = ClusterTeam(worker_plane, queues, queues.add_cluster_queue("gpus", quota))
        queues.add_local_queue(_QUEUE, worker.cluster_queue)
        manager_plane.kubectl.apply(*_example("multikueue-manager.yaml", namespace))
        manager_plane.kubectl.wait_for("clusterqueue/main", "condition=Active", seconds=60)
        manager = ClusterTeam(manager_plane, Queues(manager_plane, namespace), "main")
        make_claims(worker_plane, namespace)
        for team, name in ((manager, "manager"), (worker, "worker")):
            folder = tmp_path_factory.mktemp(f"{name}-operator")
            plane = team.control_plane
            stack.enter_context(OperatorProcess(folder, plane.kubeconfig, namespace, platform=_PLATFORM))
        yield Clusters(manager, worker, kueue_nodes)
        stack.close()
        queues.delete()


@pytest.fixture
def clusters(shared_clusters: Clusters) -> Iterator[Clusters]:
    """Both clusters without jobs. At the end of a test no quota may be in use."""
    shared_clusters.nodes.behave = until_told
    yield shared_clusters
    manager = shared_clusters.manager
    manager.control_plane.kubectl("delete", "aj", "--all", "-n", manager.namespace)
    shared_clusters.until_quota_is_free()
    shared_clusters.worker.until(
        lambda: not shared_clusters.worker.phases() and not shared_clusters.worker.pods(),
        "the worker cluster to have no job and no pod",
    )


def _example(name: str, namespace: str = "default") -> list[Json]:
    """Return the objects of an example, with its namespace `default` replaced."""
    documents = list(yaml.safe_load_all((_EXAMPLES / name).read_text()))
    for document in documents:
        if document["metadata"].get("namespace") == "default":
            document["metadata"]["namespace"] = namespace
    return documents


def test_a_job_runs_in_the_worker_cluster_and_its_end_is_seen_in_the_manager_cluster(
    clusters: Clusters,
) -> None:
    manager, worker = clusters.manager, clusters.worker
    manager.apply(_trained("one"))
    clusters.until_running("one")
    assert manager.pods() == {}
    assert (manager.gpus_in_use(), worker.gpus_in_use()) == (2, 2)
    own, prebuilt = manager.workload(), worker.workload()
    copy = worker.job("one")
    assert copy["metadata"]["labels"][PREBUILT_WORKLOAD_LABEL] == prebuilt["metadata"]["name"]
    (owner,) = prebuilt["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"]) == (copy["metadata"]["uid"], True)
    # Its spec has never changed: MultiKueue would delete it with the job.
    assert (prebuilt["metadata"]["name"], prebuilt["metadata"]["generation"]) == (own["metadata"]["name"], 1)
    assert prebuilt["metadata"]["labels"][UID_LABEL] == manager.job("one")["metadata"]["uid"]
    listed = manager.control_plane.kubectl("get", "secrets,services,configmaps", "-n", manager.namespace)
    assert "one-" not in listed
    clusters.nodes.exit(worker.namespace, "one-driver-0", Exit())
    manager.until_phase("one", "Succeeded")
    clusters.until_quota_is_free()
    manager.until(lambda: manager.queues.workloads.is_true(own["metadata"]["name"], "Finished"), "the end")
    assert manager.queues.workloads.condition(own["metadata"]["name"], "Finished")["reason"] == "Succeeded"
    assert manager.job("one")["status"]["result"]["claimName"] == "runs"
    worker.until_gone("one")


def test_a_failure_is_seen_and_a_retry_runs_anew(clusters: Clusters) -> None:
    manager, worker = clusters.manager, clusters.worker
    manager.apply(_trained("one"))
    clusters.until_running("one")
    clusters.nodes.exit(worker.namespace, "one-driver-0", Exit(78, "the data has no prompts"))
    manager.until_phase("one", "Failed")
    assert "the data has no prompts" in manager.job("one")["status"]["message"]
    clusters.until_quota_is_free()
    worker.until_gone("one")
    manager.control_plane.kubectl("annotate", "aj", "one", "kubealign.dev/retry=1", "-n", manager.namespace)
    clusters.until_running("one")
    assert (manager.gpus_in_use(), worker.gpus_in_use()) == (2, 2)


def test_a_deleted_job_ends_in_the_worker_cluster(clusters: Clusters) -> None:
    manager, worker = clusters.manager, clusters.worker
    manager.apply(_trained("one"))
    clusters.until_running("one")
    manager.control_plane.kubectl("delete", "aj", "one", "-n", manager.namespace)
    worker.until_gone("one")
    manager.until_gone("one")
    clusters.until_quota_is_free()


def test_a_suspended_job_saves_in_the_worker_cluster_and_resumes_as_a_new_copy(clusters: Clusters) -> None:
    manager, worker = clusters.manager, clusters.worker

    def behave(pod: Json) -> Behaviour:
        # The driver needs a moment to save its checkpoint.
        return Behaviour(stop_after=2.0) if process_of(pod) == "driver" else until_told(pod)

    clusters.nodes.behave = behave
    manager.apply(_trained("one"))
    clusters.until_running("one")
    before = worker.job("one")["metadata"]["uid"]
    manager.set_suspended("one", True)
    manager.until_phase("one", "Suspending")
    # The other pods stay while the driver saves.
    assert sum(pod.startswith("one-trainer-") for pod in worker.pods()) == 2
    assert manager.gpus_in_use() == 2
    manager.until_phase("one", "Suspended")
    manager.until(lambda: not manager.queues.workloads.all(), "its Workload to be deleted")
    worker.until_gone("one")
    clusters.until_quota_is_free()
    manager.set_suspended("one", False)
    clusters.until_running("one")
    assert worker.job("one")["metadata"]["uid"] != before
    assert (manager.gpus_in_use(), worker.gpus_in_use()) == (2, 2)


def test_a_job_waits_for_the_quota_of_each_cluster(clusters: Clusters) -> None:
    manager, worker = clusters.manager, clusters.worker
    manager.apply(_trained("one"), _trained("two"))
    clusters.until_running("one")
    clusters.until_running("two")
    manager.apply(_trained("three"))
    says = "has quota in queue align of Kueue, and waits for that of a worker cluster"
    manager.until(lambda: manager.job("three").get("status", {}).get("message") == says, says)
    assert (manager.phases()["three"], "three" in worker.phases()) == ("Pending", False)
    clusters.nodes.exit(worker.namespace, "one-driver-0", Exit())
    clusters.until_running("three")


def test_rollout_workers_that_the_worker_cluster_has_no_quota_for_are_not_started(clusters: Clusters) -> None:
    manager, worker = clusters.manager, clusters.worker
    rollout = {"replicas": 5, "minReplicas": 1, "podTemplate": _gpu_template()}
    job = rloo("one", trainer={"ranks": 1, "podTemplate": _gpu_template()}, rollout=rollout)
    manager.apply(_dispatched(job))
    clusters.until_running("one")
    # Sixteen GPUs in the manager cluster, four in the worker cluster.
    assert (manager.gpus_in_use(), worker.gpus_in_use()) == (6, 4)
    says = "2 more rollout workers wait for an admission of the job with more"
    manager.until(lambda: says in manager.job("one")["status"].get("message", ""), says)
    assert len(worker.queues.workloads.all()) == 1


def test_a_preempted_copy_is_dispatched_again(clusters: Clusters) -> None:
    manager, worker = clusters.manager, clusters.worker
    manager.apply(_trained("one"))
    clusters.until_running("one")
    # A job of the worker cluster's own, with a higher priority.
    urgent = worker.queues.add_priority_class("urgent", 1000)
    local = sft("local", trainer={"ranks": 4, "podTemplate": _gpu_template()})
    local["metadata"]["labels"] = {QUEUE_LABEL: _QUEUE, "kueue.x-k8s.io/priority-class": urgent}
    worker.apply(local)
    worker.until_phase("local", "Running")
    manager.until_phase("one", "Pending")
    worker.control_plane.kubectl("delete", "aj", "local", "-n", worker.namespace)
    # In the same copy, or in a new one: Kueue deletes the copy if it sees the quota returned.
    clusters.until_running("one")
    for team in (manager, worker):
        team.until(lambda team=team: team.gpus_in_use() == 2, "two GPUs to be in use")


def test_a_job_without_a_queue_says_so(clusters: Clusters) -> None:
    manager = clusters.manager
    job = _trained("one")
    del job["metadata"]["labels"]
    manager.apply(job)
    says = f"spec.managedBy: needs a LocalQueue of Kueue: name it in the label {QUEUE_LABEL} of the job"
    manager.until(lambda: says in manager.job("one").get("status", {}).get("message", ""), says)
    assert manager.queues.workloads.all() == {}
