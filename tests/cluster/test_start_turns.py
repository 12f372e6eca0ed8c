"""Jobs that start one at a time, with the real scheduler and a simulated node of four GPUs."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.support.behaviour import Behaviour, Exit, Json, always
from cluster.support.cluster_jobs import apply, make_claims, rloo, sft, until_told
from cluster.support.control_plane import ControlPlane
from cluster.support.door import define
from cluster.support.kube_namespaces import temporary_namespace
from cluster.support.operator_process import OperatorProcess
from cluster.support.simulated_kubelet import SimulatedKubelet
from cluster.support.team import Team

_GPU = "nvidia.com/gpu"
_GPUS = 4
_URGENT = "urgent"
_FILLER = "filler"
#: The shortest that the chart allows.
_TURN_SECONDS = 10

Operated = Callable[..., OperatorProcess]


@pytest.fixture(scope="module")
def gpu_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Kubernetes API of these tests alone: its only node has GPUs."""
    with ControlPlane(tmp_path_factory.mktemp("gpu-plane")) as running:
        define(running)
        running.kubectl("create", "priorityclass", _URGENT, "--value=1000", "--preemption-policy=Never")
        yield running


@pytest.fixture(scope="module")
def gpu_node(gpu_plane: ControlPlane) -> Iterator[SimulatedKubelet]:
    """A simulated node with four GPUs. `behave` is reset after each test."""
    with gpu_plane.simulated_kubelet(capacity={_GPU: str(_GPUS)}) as kubelet:
        yield kubelet


class GpuTeam(Team):
    """A namespace whose jobs need GPUs of one node."""

    def fill(self) -> None:
        """Let a pod use all GPUs."""
        container = {"name": "main", "image": "none", "resources": {"limits": {_GPU: _GPUS}}}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": _FILLER},
            "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]},
        }
        apply(self.control_plane, self.namespace, pod)
        self.until(lambda: _FILLER in self.pod_nodes(), "the GPUs to be used")

    def free(self) -> None:
        """Remove the pod that uses all GPUs."""
        self.control_plane.kubectl("delete", "pod", _FILLER, "-n", self.namespace)

    def free_at_once(self) -> None:
        """Remove that pod while the scheduler is down.

        A new scheduler has no pod in backoff, and places the urgent ones first.
        """
        self.control_plane.scheduler.kill()
        self.free()
        self.control_plane.scheduler.start()

    def processes(self, name: str, pods: Any = None) -> set[str]:
        """Return the processes of a job that have pods, without its preparation."""
        names = self.pods() if pods is None else pods
        processes = {
            pod.removeprefix(f"{name}-").rpartition("-")[0] for pod in names if pod.startswith(f"{name}-")
        }
        return processes - {"prepare"}

    def on_gpus(self, name: str) -> set[str]:
        """Return the processes of a job that have a node, of those that need a GPU."""
        processes = self.processes(name, self.pod_nodes())
        return {process for process in processes if process.startswith(("trainer", "reward"))}

    def status(self, name: str) -> Json:
        status: Json = self.job(name).get("status", {})
        return status

    def turn(self, name: str) -> Json:
        turn: Json = self.status(name).get("startTurn", {})
        return turn

    def message(self, name: str) -> str:
        return str(self.status(name).get("message", ""))

    def until_message(self, name: str, text: str) -> None:
        self.until(lambda: text in self.message(name), f"{name} to say {text!r}")

    def until_turn(self, name: str, fields: set[str]) -> None:
        self.until(lambda: set(self.turn(name)) == fields, f"{name} to have the turn {fields}")

    def until_starting(self, names: set[str]) -> None:
        """Wait until each of the jobs waits for its turn or has it."""
        self.until(lambda: all(map(self.turn, names)), f"{sorted(names)} to wait for their turn")

    def until_pods(self, name: str, processes: set[str]) -> None:
        self.until(lambda: processes <= self.processes(name), f"{name} to have the pods {processes}")


@pytest.fixture
def team(gpu_plane: ControlPlane, gpu_node: SimulatedKubelet) -> Iterator[GpuTeam]:
    """Namespace with claims. Its jobs and pods are gone after a test."""
    with temporary_namespace(gpu_plane) as namespace:
        make_claims(gpu_plane, namespace)
        gpu_node.behave = until_told
        team = GpuTeam(gpu_plane, namespace)
        yield team
        gpu_node.behave = always(Behaviour())
        gpu_plane.kubectl("delete", "aj,pods", "--all", "-n", namespace)
        team.until(lambda: not team.pods(), "all pods to be gone")


@pytest.fixture
def operated(team: GpuTeam, tmp_path: Path) -> Iterator[Operated]:
    """Start an operator with these settings of the platform."""
    running: list[OperatorProcess] = []

    def start(**platform: Any) -> OperatorProcess:
        settings = {"image": "none", "redisHost": "redis.none", **platform}
        operator = OperatorProcess(tmp_path, team.control_plane.kubeconfig, team.namespace, platform=settings)
        operator.start()
        running.append(operator)
        return operator

    yield start
    for operator in running:
        operator.daemon.stop()


def _template(priority: str = "") -> Json:
    resources = {"limits": {_GPU: 1, "cpu": "1", "memory": "1Gi"}}
    spec: Json = {"containers": [{"name": "main", "resources": resources}]}
    return {"spec": {**spec, "priorityClassName": priority} if priority else spec}


def trained(name: str, ranks: int = 3, **spec: Any) -> Json:
    """Return an SFT job whose ranks have a GPU each."""
    return sft(name, trainer={"ranks": ranks, "podTemplate": _template()}, **spec)


def scored(name: str, first: str) -> Json:
    """Return an RLOO job that needs all four GPUs: two for ranks and two for reward models.

    Args:
        first: Section whose pods the scheduler places first: trainer or rewards.
    """
    templates = {
        section: _template(_URGENT if section == first else "") for section in ("trainer", "rewards")
    }
    reward = {
        "name": "helpful",
        "model": {"volume": {"claimName": "models", "path": "rm"}},
        "replicas": 2,
        "podTemplate": templates["rewards"],
    }
    return rloo(
        name,
        trainer={"ranks": 2, "podTemplate": templates["trainer"]},
        rewards=[reward],
        rollout={"replicas": 1},
    )


_RANKS, _REWARDS = {"trainer-0", "trainer-1"}, {"reward-helpful-0", "reward-helpful-1"}


def test_without_turns_two_jobs_hold_half_of_the_gpus_each(team: GpuTeam, operated: Operated) -> None:
    operated()
    team.fill()
    team.apply(scored("one", "trainer"), scored("two", "rewards"))
    for name in ("one", "two"):
        team.until_pods(name, _RANKS | _REWARDS)
        team.until_message(name, "Insufficient nvidia.com/gpu")
    team.free_at_once()
    team.until(lambda: team.on_gpus("one") == _RANKS, "the ranks of one to have nodes")
    team.until(lambda: team.on_gpus("two") == _REWARDS, "the reward models of two to have nodes")
    # Neither can go on, and neither gives up: the scheduler knows no more of them than of single pods.
    for name in ("one", "two"):
        team.until_message(name, "fits on no node: 0/1 nodes are available: 1 Insufficient nvidia.com/gpu")
    assert team.phases() == {"one": "Starting", "two": "Starting"}


def test_with_turns_the_same_two_jobs_run_one_after_the_other(
    team: GpuTeam, operated: Operated, gpu_node: SimulatedKubelet
) -> None:
    operated(startOneAtATime=True)
    team.fill()
    team.apply(scored("one", "trainer"))
    team.until_pods("one", _RANKS | _REWARDS)
    team.apply(scored("two", "rewards"))
    team.until_message("two", "waits for job one to start, position 1")
    assert team.phases() == {"one": "Starting", "two": "Pending"}
    assert team.processes("two") == set()
    table = team.control_plane.kubectl("get", "aj", "-o", "wide", "-n", team.namespace)
    assert "waits for job one to start, position 1" in table
    events = team.control_plane.kubectl("get", "events.events.k8s.io", "-n", team.namespace, "-o", "wide")
    assert "WaitsForTurn" in events
    team.free()
    team.until_phase("one", "Running")
    assert set(team.turn("one")) == {"endedAt"}
    # The turn of the other job begins as soon as every pod of the first has a node.
    team.until_turn("two", {"heldSince"})
    team.until_pods("two", _RANKS | _REWARDS)
    assert team.on_gpus("two") == set()
    team.until_pods("one", {"driver"})
    gpu_node.exit(team.namespace, "one-driver-0", Exit())
    team.until_phase("two", "Running")


def test_two_jobs_that_are_applied_at_once_take_turns(
    team: GpuTeam, operated: Operated, gpu_node: SimulatedKubelet
) -> None:
    operated(startOneAtATime=True)
    names = {"one", "two", "three"}
    team.apply(*(trained(name) for name in sorted(names)))
    ended: set[str] = set()
    while ended != names:
        team.until(
            lambda: "Running" in team.phases().values(), f"one of {sorted(names - ended)} to be Running"
        )
        (running,) = (name for name, phase in team.phases().items() if phase == "Running")
        waiting = names - ended - {running}
        team.until_starting(waiting)
        # One of the others has its turn, and waits for a node; no pod of a third exists.
        with_pods = {name for name in waiting if team.processes(name)}
        assert len(with_pods) <= 1
        assert all(set(team.turn(name)) == {"heldSince"} for name in with_pods)
        team.until_pods(running, {"driver"})
        gpu_node.exit(team.namespace, f"{running}-driver-0", Exit())
        team.until_phase(running, "Succeeded")
        ended.add(running)


def test_a_job_that_does_not_fit_loses_its_turn(team: GpuTeam, operated: Operated) -> None:
    operated(startOneAtATime=True, startTurnSeconds=_TURN_SECONDS)
    team.apply(trained("big", ranks=5))
    team.until(lambda: len(team.on_gpus("big")) == _GPUS, "four of the five ranks to have nodes")
    team.apply(trained("small"))
    team.until_message("small", "waits for job big to start, position 1")
    team.until_phase("small", "Running")
    lost = team.turn("big")["lost"]
    missing = {f"big-trainer-{rank}-0" for rank in range(5) if f"big-trainer-{rank}-0" in lost}
    assert len(missing) == 1
    assert f"within {_TURN_SECONDS} s" in lost
    assert "0/1 nodes are available: 1 Insufficient nvidia.com/gpu" in lost
    events = team.control_plane.kubectl("get", "events.events.k8s.io", "-n", team.namespace, "-o", "wide")
    assert "StartTurnLost" in events
    # It goes on once it is first again; no restart is counted, and no attempt.
    team.until(lambda: "heldSince" in team.turn("big"), "the next turn of the job that does not fit")
    team.until_pods("big", {f"trainer-{rank}" for rank in range(5)})
    assert team.status("big").get("restarts", 0) == 0
    assert "attempts" not in team.status("big")
    assert all(pod.endswith("-0") for pod in team.pods() if pod.startswith("big-"))


def test_turns_survive_a_restart_of_the_operator(team: GpuTeam, operated: Operated) -> None:
    operator = operated(startOneAtATime=True)
    team.fill()
    team.apply(trained("one"))
    team.until_pods("one", {"trainer-0", "trainer-1", "trainer-2"})
    team.apply(trained("two"))
    team.until_message("two", "waits for job one to start")
    before, turns = team.pods(), {name: team.turn(name) for name in ("one", "two")}
    operator.daemon.kill()
    operator.start()
    team.until(lambda: operator.leads, "the operator to lead again")
    team.control_plane.kubectl("annotate", "aj", "two", "touched=yes", "-n", team.namespace)
    team.apply(trained("three"))
    # The operator learns of this job last: when it waits, the others were reconciled too.
    team.until_message("three", "waits for job one to start, position 2")
    assert team.processes("two") == team.processes("three") == set()
    assert {name: team.turn(name) for name in ("one", "two")} == turns
    team.free()
    team.until_phase("one", "Running")
    after = team.pods()
    assert {
        name: after[name] for name in before if name in after and name.startswith("one-")
    }.items() <= before.items()
    team.until_turn("two", {"heldSince"})
    team.until_message("three", "waits for job two to start, position 1")


@pytest.mark.parametrize("end", ["deleted", "suspended"])
def test_the_next_job_starts_when_the_job_before_it_is(team: GpuTeam, operated: Operated, end: str) -> None:
    """The end of a turn is seen at once: the next reconcile of all jobs is ten minutes away."""
    operated(startOneAtATime=True)
    team.fill()
    team.apply(trained("first"))
    team.until_pods("first", {"trainer-0", "trainer-1", "trainer-2"})
    team.apply(trained("second"))
    team.until_message("second", "waits for job first to start")
    # A third job, so that the operator has done with the second one by then. Jobs that begin to wait within
    # the same second are in the order of their names.
    team.apply(trained("third"))
    team.until_message("third", "waits for job first to start, position 2")
    kubectl = team.control_plane.kubectl
    if end == "deleted":
        kubectl("delete", "aj", "first", "-n", team.namespace)
    else:
        kubectl(
            "patch", "aj", "first", "--type=merge", "-p", '{"spec":{"suspend":true}}', "-n", team.namespace
        )
    team.until(lambda: "heldSince" in team.turn("second"), "the turn of the next job", seconds=5.0)
    team.free()
    team.until_phase("second", "Running")
    if end == "suspended":
        assert team.phases()["first"] == "Suspended"
        kubectl(
            "patch", "aj", "first", "--type=merge", "-p", '{"spec":{"suspend":false}}', "-n", team.namespace
        )
        team.until_message("first", "waits for job third to start, position 1")
        kubectl("delete", "aj", "second", "third", "-n", team.namespace)
        team.until_phase("first", "Running")
