"""Platform in a cluster that enforces NetworkPolicies: its chart values, and its pods."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .cluster import Cluster
from .helm import CHART, NAMESPACE, RELEASE, Helm
from .network_probes import Prober
from .node import Node
from .platform import platform_values

_UPGRADE_SECONDS = 120.0
#: Label of every namespace with its name.
_NAME = "kubernetes.io/metadata.name"


@dataclass(frozen=True)
class Namespaces:
    """Namespaces of the tests: of jobs, of pods without any right, and of pods that may see the dashboard."""

    team: str
    elsewhere: str
    monitoring: str


@dataclass(frozen=True)
class Platform:
    """Release of the chart with its values."""

    helm: Helm
    values: Mapping[str, Any]

    def upgrade(self, **values: Any) -> None:
        """Replace some values of the release, and wait until its pods are ready."""
        file = str(self.helm.values({**self.values, **values}))
        where = ("--namespace", NAMESPACE, "-f", file, "--set", "crds.keep=false")
        waiting = ("--wait", "--timeout", f"{_UPGRADE_SECONDS:.0f}s")
        self.helm("upgrade", RELEASE, str(CHART), *where, *waiting, timeout=_UPGRADE_SECONDS + 30)


def policed_values(cluster: Cluster, second_node: Node, namespaces: Namespaces) -> dict[str, Any]:
    """Return the values that an administrator sets where policies are enforced.

    Pods may reach the API server at its own port, and jobs not at all; the dashboard is open to the namespace
    `monitoring` and to the addresses from which the API server calls pods."""
    values = platform_values()
    control_plane = cluster.control_plane
    machine = (cluster.node.addresses.machine, second_node.addresses.machine)
    values["networkPolicy"] = {
        "apiServerPorts": [control_plane.port],
        "dashboardFrom": [
            {"namespaceSelector": {"matchLabels": {_NAME: namespaces.monitoring}}},
            *({"ipBlock": {"cidr": f"{address}/32"}} for address in machine),
        ],
    }
    values["jobs"] |= {"egressExcept": [f"{control_plane.host}/32"]}
    return values


def pods_of_component(cluster: Cluster, component: str) -> list[Prober]:
    """Return the pods of operator, dashboard or redis."""
    selector = f"app.kubernetes.io/component={component}"
    names = cluster.kubectl("get", "pods", "-n", NAMESPACE, "-l", selector, "-o", "name").split()
    return [Prober(cluster.kubectl, NAMESPACE, name.removeprefix("pod/")) for name in names]
