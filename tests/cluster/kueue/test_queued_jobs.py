"""AlignmentJobs in a real Kueue: the life of a job in its queue. After each test no quota is in use."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cluster.support.behaviour import Behaviour, Exit, Json
from cluster.support.cluster_jobs import make_claims, process_of, rloo, sft, until_told
from cluster.support.control_plane import ControlPlane
from cluster.support.kueue import KueueManager, Queues
from cluster.support.operator_process import OperatorProcess
from cluster.support.simulated_kubelet import SimulatedKubelet
from cluster.support.team import Team
from kubealign.labels import QUEUE_LABEL, QUEUE_PRIORITY_LABEL

_GPU = "nvidia.com/gpu"
#: Room for the pods of a few jobs, beside their GPUs.
_QUOTA = {"cpu": "100", "memory": "1Ti"}
_QUEUE = "align"
_RACK = "example.com/rack"
_RACKS = {"simulated-0": "a", "simulated-1": "b"}


def gpu_template(gpus: int = 1) -> Json:
    return {
        "spec": {
            "containers": [
                {"name": "main", "resources": {"limits": {_GPU: gpus, "cpu": "1", "memory": "1Gi"}}}
            ]
        }
    }


def queued(job: Json, priority: str = "") -> Json:
    """Return the job with the label of the queue, and of a priority class if one is given."""
    labels = {QUEUE_LABEL: _QUEUE, **({QUEUE_PRIORITY_LABEL: priority} if priority else {})}
    return {**job, "metadata": {**job["metadata"], "labels": labels}}


def trained(name: str, ranks: int = 2, **spec: Any) -> Json:
    """Return an SFT job whose ranks have a GPU each."""
    return sft(name, trainer={"ranks": ranks, "podTemplate": gpu_template()}, **spec)


def in_racks(name: str, ranks: int, request: str) -> Json:
    """Return an SFT job whose ranks, with a GPU each, ask for a rack: `required` or `preferred`."""
    annotation = {f"kueue.x-k8s.io/podset-{request}-topology": _RACK}
    template = {"metadata": {"annotations": annotation}, **gpu_template()}
    return queued(sft(name, trainer={"ranks": ranks, "podTemplate": template}))


def sampled(name: str, replicas: int, min_replicas: int = 1) -> Json:
    """Return an RLOO job whose rank and rollout workers have a GPU each."""
    return rloo(
        name,
        trainer={"ranks": 1, "podTemplate": gpu_template()},
        rollout={"replicas": replicas, "minReplicas": min_replicas, "podTemplate": gpu_template()},
    )


class QueuedTeam(Team):
    """A namespace whose jobs wait for the quota of one ClusterQueue."""

    def __init__(self, control_plane: ControlPlane, queues: Queues, flavor: str, gpus: str) -> None:
        super().__init__(control_plane, queues.namespace)
        self.queues = queues
        self.flavor = flavor
        self.cluster_queue = queues.add_cluster_queue("gpus", {flavor: {**_QUOTA, _GPU: gpus}})
        queues.add_local_queue(_QUEUE, self.cluster_queue)

    def gpus_in_use(self) -> int:
        """Return the GPUs that the ClusterQueue has reserved."""
        return int(self.queues.usage(self.cluster_queue).get(self.flavor, {}).get(_GPU, 0))

    def message(self, name: str) -> str:
        return str(self.job(name).get("status", {}).get("message", ""))

    def until_message(self, name: str, text: str) -> None:
        self.until(lambda: text in self.message(name), f"{name} to say {text!r}")

    def until_gpus(self, count: int) -> None:
        self.until(lambda: self.gpus_in_use() == count, f"{count} GPUs to be in use")

    def processes(self, name: str) -> set[str]:
        """Return the processes of a job that have pods."""
        return {
            pod.removeprefix(f"{name}-").rpartition("-")[0]
            for pod in self.pods()
            if pod.startswith(f"{name}-")
        }

    def condition(self, name: str, kind: str) -> tuple[str, str]:
        value = next(item for item in self.job(name)["status"]["conditions"] if item["type"] == kind)
        return value["status"], value["reason"]


@pytest.fixture
def team(
    kueue_plane: ControlPlane, kueue_nodes: SimulatedKubelet, queues: Queues, tmp_path: Path
) -> Iterator[QueuedTeam]:
    """Namespace with a queue and an operator. At the end of a test no quota may be in use."""
    flavor = queues.add_flavor(node_labels={"kubernetes.io/hostname": "simulated-1"})
    with _operated(kueue_plane, kueue_nodes, QueuedTeam(kueue_plane, queues, flavor, "4"), tmp_path) as team:
        yield team


@pytest.fixture
def team_on_racks(
    kueue_plane: ControlPlane, kueue_nodes: SimulatedKubelet, queues: Queues, tmp_path: Path
) -> Iterator[QueuedTeam]:
    """Like `team`, with both nodes, of eight GPUs and a rack each, as a topology."""
    for node, rack in _RACKS.items():
        kueue_plane.kubectl("label", "node", node, f"{_RACK}={rack}", "pool=gpu", "--overwrite")
    topology = queues.add_topology("racks", _RACK, "kubernetes.io/hostname")
    flavor = queues.add_flavor("racks", node_labels={"pool": "gpu"}, topology=topology)
    with _operated(kueue_plane, kueue_nodes, QueuedTeam(kueue_plane, queues, flavor, "16"), tmp_path) as team:
        yield team


@contextmanager
def _operated(
    kueue_plane: ControlPlane, kueue_nodes: SimulatedKubelet, team: QueuedTeam, folder: Path
) -> Iterator[QueuedTeam]:
    make_claims(kueue_plane, team.namespace)
    kueue_nodes.behave = until_told
    platform = {"image": "none", "redisHost": "redis.none", "usesKueue": True}
    with OperatorProcess(folder, kueue_plane.kubeconfig, team.namespace, platform=platform):
        yield team
        kueue_plane.kubectl("delete", "aj", "--all", "-n", team.namespace)
        team.queues.wait_for_no_usage(team.cluster_queue)


def test_a_job_is_admitted_runs_on_its_flavor_and_releases_its_quota(
    team: QueuedTeam, kueue_nodes: SimulatedKubelet
) -> None:
    team.apply(queued(trained("one")))
    team.until_phase("one", "Running")
    team.until(lambda: "driver" in team.processes("one"), "the driver's pod")
    team.until_gpus(2)
    assert team.condition("one", "Admitted") == ("True", "Admitted")
    team.until(lambda: len(team.pod_nodes()) == len(team.pods()), "all pods to be scheduled")
    assert set(team.pod_nodes().values()) == {"simulated-1"}
    (workload,) = team.queues.workloads.all()
    assert team.queues.workloads.is_true(workload, "PodsReady")
    kueue_nodes.exit(team.namespace, "one-driver-0", Exit())
    team.until_phase("one", "Succeeded")
    team.until_gpus(0)
    assert team.queues.workloads.is_true(workload, "Finished")


def test_a_job_waits_in_the_queue_without_pods(team: QueuedTeam, kueue_nodes: SimulatedKubelet) -> None:
    team.apply(queued(trained("first", 3)))
    team.until_phase("first", "Running")
    team.apply(queued(trained("second", 3)))
    team.until_message("second", "insufficient unused quota for nvidia.com/gpu")
    assert team.phases()["second"] == "Pending"
    assert team.processes("second") == set()
    assert team.job("second")["status"].get("activeSince") is None
    table = team.control_plane.kubectl("get", "aj", "-o", "wide", "-n", team.namespace)
    assert "waits in queue align of Kueue" in table
    team.until(lambda: "driver" in team.processes("first"), "the driver's pod")
    kueue_nodes.exit(team.namespace, "first-driver-0", Exit())
    team.until_phase("second", "Running")
    team.until_gpus(3)


def test_a_crash_restarts_in_the_same_quota(team: QueuedTeam, kueue_nodes: SimulatedKubelet) -> None:
    team.apply(queued(trained("one")))
    team.until_phase("one", "Running")
    (before,) = team.queues.workloads.all().values()
    kueue_nodes.exit(team.namespace, "one-trainer-1-0", Exit(1, "RuntimeError: a bug"))
    team.until(lambda: "one-trainer-1-1" in team.pods(), "the second attempt")
    team.until(lambda: team.job("one")["status"].get("restarts") == 1, "the restart to be counted")
    team.until_gpus(2)
    (after,) = team.queues.workloads.all().values()
    assert after["metadata"]["uid"] == before["metadata"]["uid"]


def test_a_job_of_a_higher_priority_preempts_one_that_saves_first(
    team: QueuedTeam, kueue_nodes: SimulatedKubelet
) -> None:
    urgent = team.queues.add_priority_class("urgent", 1000)

    def behave(pod: Json) -> Behaviour:
        # The driver needs a moment to save its checkpoint.
        return Behaviour(stop_after=2.0) if process_of(pod) == "driver" else until_told(pod)

    kueue_nodes.behave = behave
    team.apply(queued(trained("low", 3)))
    team.until(lambda: "driver" in team.processes("low"), "the driver's pod")
    team.until_phase("low", "Running")
    team.apply(queued(trained("high", 3), urgent))
    team.until_phase("low", "Suspending")
    # The other pods stay while the driver saves, and no pod of the other job starts meanwhile.
    assert "the driver saves a checkpoint" in team.message("low")
    assert {"trainer-0", "trainer-1", "trainer-2"} <= team.processes("low")
    assert team.processes("high") == set()
    team.until_phase("low", "Pending")
    team.until_message("low", "insufficient unused quota")
    assert team.condition("low", "Suspended")[0] == "True"
    team.until_phase("high", "Running")
    team.until_gpus(3)
    assert team.processes("low") == set()
    assert team.job("low")["status"].get("restarts", 0) == 0
    team.until(lambda: "driver" in team.processes("high"), "the driver's pod")
    kueue_nodes.exit(team.namespace, "high-driver-0", Exit())
    team.until_phase("low", "Running")
    team.until_gpus(3)


def test_a_suspended_job_gives_its_quota_back(team: QueuedTeam) -> None:
    team.apply(queued(trained("one")))
    team.until_phase("one", "Running")
    patch = ("patch", "aj", "one", "--type=merge", "-n", team.namespace, "-p")
    team.control_plane.kubectl(*patch, '{"spec": {"suspend": true}}')
    team.until_phase("one", "Suspended")
    team.until_gpus(0)
    assert team.queues.workloads.all() == {}
    team.control_plane.kubectl(*patch, '{"spec": {"suspend": false}}')
    team.until_phase("one", "Running")
    team.until_gpus(2)


def test_rollout_workers_are_admitted_as_far_as_there_is_quota(
    team: QueuedTeam, kueue_nodes: SimulatedKubelet
) -> None:
    # Trainer and three of five workers fit into four GPUs.
    team.apply(queued(sampled("one", 5)))
    team.until_phase("one", "Running")
    team.until_message("one", "2 more rollout workers wait in queue align of Kueue")
    assert {f"rollout-{index}" for index in range(3)} <= team.processes("one")
    others = {"rollout-3", "rollout-4"}
    assert not others & team.processes("one")
    team.until_gpus(4)
    team.queues.set_quotas(team.cluster_queue, {team.flavor: {**_QUOTA, _GPU: "5"}})
    # Kueue chooses between two that have waited equally long.
    team.until(lambda: len(others & team.processes("one")) == 1, "the fourth worker")
    team.until_message("one", "1 more rollout worker waits")
    # Fewer workers than were admitted: the rest of the quota returns.
    team.control_plane.kubectl("scale", "aj", "one", "--replicas=2", "-n", team.namespace)
    team.until_gpus(3)
    assert not {"rollout-2", *others} & team.processes("one")
    team.control_plane.kubectl("scale", "aj", "one", "--replicas=3", "-n", team.namespace)
    team.until(lambda: "rollout-2" in team.processes("one"), "the third worker to be back")
    team.until_gpus(4)


def test_a_failed_job_releases_its_quota_and_asks_again_when_it_is_retried(
    team: QueuedTeam, kueue_nodes: SimulatedKubelet
) -> None:
    team.apply(queued(trained("one")))
    team.until(lambda: "driver" in team.processes("one"), "the driver's pod")
    team.until_phase("one", "Running")
    kueue_nodes.exit(team.namespace, "one-driver-0", Exit(78, "the data has no prompts"))
    team.until_phase("one", "Failed")
    team.until_gpus(0)
    team.control_plane.kubectl("annotate", "aj", "one", "kubealign.dev/retry=1", "-n", team.namespace)
    team.until_phase("one", "Running")
    team.until_gpus(2)


def test_a_deleted_job_releases_its_quota(team: QueuedTeam) -> None:
    team.apply(queued(trained("one")))
    team.until_phase("one", "Running")
    team.control_plane.kubectl("delete", "aj", "one", "-n", team.namespace)
    team.until_gpus(0)
    team.until(lambda: team.queues.workloads.all() == {}, "the Workload to go with its job")


def test_a_workload_that_an_administrator_deactivates_stops_its_job(team: QueuedTeam) -> None:
    team.apply(queued(trained("one")))
    team.until_phase("one", "Running")
    (workload,) = team.queues.workloads.all()
    team.queues.workloads.patch(workload, {"spec": {"active": False}})
    team.until_phase("one", "Pending")
    team.until_message("one", f"waits until spec.active of Workload {workload} is true")
    assert team.pods() == {}
    team.queues.workloads.patch(workload, {"spec": {"active": True}})
    team.until_phase("one", "Running")


def test_jobs_go_on_while_kueue_is_down(
    team: QueuedTeam, kueue: KueueManager, kueue_nodes: SimulatedKubelet
) -> None:
    team.apply(queued(sampled("one", 2)))
    team.until_phase("one", "Running")
    team.until_gpus(3)
    kueue.kill()
    try:
        # The Workload of the new worker is refused, which must not keep a crashed rank from its restart.
        team.control_plane.kubectl("scale", "aj", "one", "--replicas=3", "-n", team.namespace)
        team.until_message("one", "1 more rollout worker waits")
        kueue_nodes.exit(team.namespace, "one-trainer-0-0", Exit(1))
        team.until(lambda: "one-trainer-0-1" in team.pods(), "the second attempt")
        team.until_phase("one", "Running")
    finally:
        kueue.start()
    team.until(lambda: "rollout-2" in team.processes("one"), "the third worker")
    team.until_gpus(4)


def test_ranks_stay_in_the_rack_that_they_require(
    team_on_racks: QueuedTeam, kueue_nodes: SimulatedKubelet
) -> None:
    team = team_on_racks

    def racks(name: str, attempt: int = 0) -> dict[str, int]:
        """Return the racks of the trainer's pods, with the number of pods."""
        nodes = [
            node
            for pod, node in team.pod_nodes().items()
            if pod.startswith(f"{name}-trainer-") and pod.endswith(f"-{attempt}")
        ]
        return dict(Counter(_RACKS[node] for node in nodes))

    team.apply(in_racks("one", 6, "required"))
    team.until_phase("one", "Running")
    team.apply(in_racks("two", 6, "required"))
    team.until_phase("two", "Running")
    assert sorted(map(tuple, (racks("one"), racks("two")))) == [("a",), ("b",)]
    assert racks("one") | racks("two") == {"a": 6, "b": 6}

    # Four GPUs are free, two in each rack.
    team.apply(in_racks("three", 4, "required"))
    team.until_message("three", "topology")
    assert team.processes("three") == set()
    team.apply(in_racks("four", 4, "preferred"))
    team.until_phase("four", "Running")
    assert racks("four") == {"a": 2, "b": 2}

    (rack,) = racks("one")
    kueue_nodes.exit(team.namespace, "one-trainer-0-0", Exit(1, "RuntimeError: a bug"))
    team.until(lambda: racks("one", attempt=1) == {rack: 6}, "the second attempt in the same rack")
    team.until_phase("one", "Running")


def test_pods_that_ask_for_no_rack_are_placed_on_a_topology_too(team_on_racks: QueuedTeam) -> None:
    team = team_on_racks
    team.apply(queued(sampled("one", replicas=2)))
    team.until_phase("one", "Running")
    team.until(lambda: "driver" in team.processes("one"), "the driver's pod")
    team.until_gpus(3)
    team.until(lambda: len(team.pod_nodes()) == len(team.pods()), "all pods to be scheduled")
    team.control_plane.kubectl("scale", "aj", "one", "--replicas=3", "-n", team.namespace)
    team.until_gpus(4)
    team.until(lambda: "rollout-2" in team.processes("one"), "the third worker")
    team.until(lambda: len(team.pod_nodes()) == len(team.pods()), "its pod to be scheduled")
