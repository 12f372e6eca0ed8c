"""Queues, flavors and priority classes of Kueue for the tests of one namespace."""

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal

from kubernetes.utils.quantity import parse_quantity

from ..behaviour import Json
from ..control_plane import ControlPlane
from .objects import KueueObjects
from .workloads import Workloads

#: Flavor -> resource -> amount.
Quotas = Mapping[str, Mapping[str, str]]
Usage = dict[str, dict[str, Decimal]]


class Queues:
    """Queues with quotas, and the Workloads of a namespace.

    Names of cluster-scoped objects begin with the namespace; the methods that create one return its name."""

    def __init__(self, control_plane: ControlPlane, namespace: str) -> None:
        self.control_plane = control_plane
        self.namespace = namespace
        self.workloads = Workloads(control_plane, namespace)
        self._objects = KueueObjects(control_plane, namespace)
        #: Flavors with a topology.
        self._on_topology: set[str] = set()

    def add_flavor(
        self,
        name: str = "default",
        *,
        node_labels: Mapping[str, str] | None = None,
        tolerations: Sequence[Json] = (),
        topology: str = "",
    ) -> str:
        """Create a ResourceFlavor: its pods need the node labels as their selector, and the tolerations.

        `topology`: the Topology of its nodes; empty: none."""
        spec: Json = {"nodeLabels": dict(node_labels or {}), "tolerations": list(tolerations)}
        if topology:
            spec["topologyName"] = topology
        flavor = self._create("ResourceFlavor", "resourceflavors", name, {"spec": spec})
        if topology:
            self._on_topology.add(flavor)
        return flavor

    def add_topology(self, name: str, *levels: str) -> str:
        """Create a Topology with these node labels, the widest domain first."""
        spec = {"levels": [{"nodeLabel": level} for level in levels]}
        return self._create("Topology", "topologies", f"{name}-topology", {"spec": spec})

    def add_cluster_queue(self, name: str, quotas: Quotas, **spec: object) -> str:
        """Create a ClusterQueue with nominal quotas, and wait until it is active.

        Every flavor has the same resources; earlier flavors are tried first. A Workload preempts Workloads of
        lower priority. `spec` adds or replaces fields."""
        body: Json = {
            "namespaceSelector": {},
            "resourceGroups": [_resource_group(quotas)],
            "preemption": {"withinClusterQueue": "LowerPriority"},
            **spec,
        }
        full_name = self._create("ClusterQueue", "clusterqueues", name, {"spec": body})
        self._objects.until(lambda: self._is_active(full_name), f"ClusterQueue {full_name} to be active")
        return full_name

    def set_quotas(self, cluster_queue: str, quotas: Quotas) -> None:
        """Replace the nominal quotas of a ClusterQueue."""
        changes = {"spec": {"resourceGroups": [_resource_group(quotas)]}}
        self._objects.patch_of_cluster("clusterqueues", cluster_queue, changes)

    def add_local_queue(self, name: str, cluster_queue: str) -> str:
        """Create a LocalQueue of the namespace."""
        self._objects.create("LocalQueue", "localqueues", name, {"spec": {"clusterQueue": cluster_queue}})
        return name

    def add_priority_class(self, name: str, value: int) -> str:
        """Create a WorkloadPriorityClass."""
        return self._create("WorkloadPriorityClass", "workloadpriorityclasses", name, {"value": value})

    def set_priority(self, priority_class: str, value: int) -> None:
        """Change the value of a WorkloadPriorityClass."""
        self._objects.patch_of_cluster("workloadpriorityclasses", priority_class, {"value": value})

    def usage(self, cluster_queue: str) -> Usage:
        """Return the reserved quota in the status of a ClusterQueue, without resources that are unused."""
        queue = self._objects.get_of_cluster("clusterqueues", cluster_queue)
        reserved: Usage = {}
        for flavor in queue.get("status", {}).get("flavorsReservation", []):
            for resource in flavor["resources"]:
                if amount := parse_quantity(resource["total"]):  # type: ignore[no-untyped-call]
                    reserved.setdefault(flavor["name"], {})[resource["name"]] = amount
        return reserved

    def wait_for_usage(self, cluster_queue: str, usage: Mapping[str, Mapping[str, int | Decimal]]) -> None:
        """Wait until exactly this quota of a ClusterQueue is reserved."""
        self._objects.until(
            lambda: self.usage(cluster_queue) == usage, f"ClusterQueue {cluster_queue} to reserve {usage}"
        )

    def wait_for_no_usage(self, cluster_queue: str) -> None:
        """Wait until no quota of a ClusterQueue is reserved."""
        self._objects.until(
            lambda: not self.usage(cluster_queue), f"ClusterQueue {cluster_queue} to reserve nothing"
        )

    def until(self, is_met: Callable[[], bool], what: str) -> None:
        """Wait for a condition of the queues or Workloads. Fails the test at the deadline."""
        self._objects.until(is_met, what)

    def delete(self) -> None:
        """Delete the Workloads, then queues and flavors, and wait: Kueue keeps them while they are in use."""
        for plural in ("workloads", "localqueues"):
            self._objects.delete_all(plural)
        for plural in ("clusterqueues", "resourceflavors", "topologies", "workloadpriorityclasses"):
            self._delete_of_cluster(plural)

    def _delete_of_cluster(self, plural: str) -> None:
        for name in self._names(plural):
            self._objects.delete_of_cluster(plural, name)
            if name in self._on_topology:
                # Kueue 0.17 keeps its finalizer on such a flavor although no ClusterQueue is left.
                self._objects.remove_finalizers_of_cluster(plural, name)
        self._objects.until(
            lambda: not self._names(plural), f"the {plural} of namespace {self.namespace} to be deleted"
        )

    def _names(self, plural: str) -> list[str]:
        names = [item["metadata"]["name"] for item in self._objects.list_of_cluster(plural)]
        return [name for name in names if name.startswith(f"{self.namespace}-")]

    def _is_active(self, cluster_queue: str) -> bool:
        queue = self._objects.get_of_cluster("clusterqueues", cluster_queue)
        conditions = queue.get("status", {}).get("conditions", [])
        return any(entry["type"] == "Active" and entry["status"] == "True" for entry in conditions)

    def _create(self, kind: str, plural: str, name: str, body: Json) -> str:
        full_name = f"{self.namespace}-{name}"
        self._objects.create_for_cluster(kind, plural, full_name, body)
        return full_name


def _resource_group(quotas: Quotas) -> Json:
    flavors = [
        {
            "name": flavor,
            "resources": [{"name": name, "nominalQuota": amount} for name, amount in amounts.items()],
        }
        for flavor, amounts in quotas.items()
    ]
    return {"coveredResources": list(next(iter(quotas.values()))), "flavors": flavors}
