"""State of a cluster for the report of a failed test: objects, events and logs."""

from collections.abc import Mapping
from subprocess import TimeoutExpired

from .cluster import Cluster
from .control_plane import ControlPlane
from .daemon import Daemon
from .kube_router import KubeRouter
from .kubectl import Kubectl, KubectlFailed
from .kueue import KueueManager, Queues
from .node import Node

_LINES = 15
_SECONDS = 10.0
_OF_ALL_PODS = (
    ("get", "pods", "-o", "wide"),
    ("get", "events", "--sort-by=.lastTimestamp"),
)
_OF_REAL_PODS = (
    ("get", "alignmentjobs", "-o", "wide"),
    ("logs", "-l", "kubealign.dev/job", "--prefix", f"--tail={_LINES}", "--ignore-errors"),
)
_WORKLOADS = ("get", "alignmentjobs,workloads", "-o", "wide")

Section = tuple[str, str]


def sections(fixtures: Mapping[str, object]) -> list[Section]:
    """Return titles and texts: the objects of the test's namespaces, and the ends of the clusters' logs."""
    result: list[Section] = []
    control_plane, cluster = fixtures.get("control_plane"), fixtures.get("cluster")
    if isinstance(control_plane, ControlPlane):
        result += _objects(control_plane.kubectl, fixtures.get("namespace"))
        result += _logs(control_plane.daemons)
    if isinstance(cluster, Cluster):
        result += _objects(cluster.kubectl, fixtures.get("cluster_namespace"), *_OF_REAL_PODS)
        result += _logs([*cluster.control_plane.daemons, *cluster.node.daemons])
    if isinstance(kueue := fixtures.get("kueue"), KueueManager):
        queues = fixtures.get("queues")
        namespace = queues.namespace if isinstance(queues, Queues) else None
        result += _objects(kueue.control_plane.kubectl, namespace, _WORKLOADS)
        result += _logs([*kueue.control_plane.daemons, kueue.daemon])
    if isinstance(second_node := fixtures.get("second_node"), Node):
        result += _logs(second_node.daemons)
    if isinstance(kube_router := fixtures.get("kube_router"), KubeRouter):
        result += _logs(kube_router.daemons)
    return result


def pods_report(kubectl: Kubectl, namespace: str) -> str:
    """Return the pods' conditions, the events and the logs of each pod in a namespace."""
    commands = [("describe", "pods"), ("get", "events", "--sort-by=.lastTimestamp")]
    names = _kubectl_output(kubectl, namespace, ("get", "pods", "-o", "name")).split()
    commands += [("logs", name, "--all-containers", "--prefix", f"--tail={_LINES}") for name in names]
    return "\n".join(
        f"$ kubectl {' '.join(command)}\n{_kubectl_output(kubectl, namespace, command)}"
        for command in commands
    )


def _objects(kubectl: Kubectl, namespace: object, *further: tuple[str, ...]) -> list[Section]:
    if not isinstance(namespace, str):
        return []
    commands = (*_OF_ALL_PODS, *further)
    return [
        (f"kubectl {' '.join(command)}", _kubectl_output(kubectl, namespace, command)) for command in commands
    ]


def _kubectl_output(kubectl: Kubectl, namespace: str, command: tuple[str, ...]) -> str:
    try:
        return kubectl(*command, "-n", namespace, timeout=_SECONDS)
    except (KubectlFailed, TimeoutExpired) as error:
        return str(error)


def _logs(daemons: list[Daemon]) -> list[Section]:
    return [
        (f"{daemon.name}{'' if daemon.alive else ' (not running)'}: {daemon.log}", daemon.tail(_LINES))
        for daemon in daemons
    ]
