"""State of a cluster that explains why a test on it failed: objects, events and logs."""

from collections.abc import Mapping
from subprocess import TimeoutExpired

from .cluster import Cluster
from .control_plane import ControlPlane
from .daemon import Daemon
from .kubectl import Kubectl, KubectlFailed

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

Section = tuple[str, str]


def sections(fixtures: Mapping[str, object]) -> list[Section]:
    """Titles and texts: the objects of the test's namespaces, and the ends of the clusters' logs."""
    found: list[Section] = []
    control_plane, cluster = fixtures.get("control_plane"), fixtures.get("cluster")
    if isinstance(control_plane, ControlPlane):
        found += _objects(control_plane.kubectl, fixtures.get("namespace"))
        found += _logs(control_plane.daemons)
    if isinstance(cluster, Cluster):
        found += _objects(cluster.kubectl, fixtures.get("cluster_namespace"), *_OF_REAL_PODS)
        found += _logs([*cluster.control_plane.daemons, *cluster.node.daemons])
    return found


def pods_report(kubectl: Kubectl, namespace: str) -> str:
    """Return the pods' conditions, the events and the logs of each pod in a namespace."""
    commands = [("describe", "pods"), ("get", "events", "--sort-by=.lastTimestamp")]
    names = _said(kubectl, namespace, ("get", "pods", "-o", "name")).split()
    commands += [("logs", name, "--all-containers", "--prefix", f"--tail={_LINES}") for name in names]
    return "\n".join(f"$ kubectl {' '.join(each)}\n{_said(kubectl, namespace, each)}" for each in commands)


def _objects(kubectl: Kubectl, namespace: object, *further: tuple[str, ...]) -> list[Section]:
    if not isinstance(namespace, str):
        return []
    commands = (*_OF_ALL_PODS, *further)
    return [(f"kubectl {' '.join(command)}", _said(kubectl, namespace, command)) for command in commands]


def _said(kubectl: Kubectl, namespace: str, command: tuple[str, ...]) -> str:
    try:
        return kubectl(*command, "-n", namespace, timeout=_SECONDS)
    except (KubectlFailed, TimeoutExpired) as error:
        return str(error)


def _logs(daemons: list[Daemon]) -> list[Section]:
    return [
        (f"{daemon.name}{'' if daemon.alive else ' (not running)'}: {daemon.log}", daemon.tail(_LINES))
        for daemon in daemons
    ]
