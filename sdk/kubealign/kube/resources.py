"""API paths of the kinds of objects that operator, dashboard and client use."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from kubealign.spec.job import API_VERSION, KIND


@dataclass(frozen=True)
class ApiResource:
    """Kind of API object. `base` is /api/v1 or /apis/GROUP/VERSION."""

    base: str
    plural: str
    kind: str

    def collection_path(self, namespace: str | None = None) -> str:
        """Return the path of all objects, in one namespace or in every namespace."""
        namespace_path = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
        return f"{self.base}{namespace_path}/{self.plural}"

    def object_path(self, namespace: str, name: str) -> str:
        """Return the path of one object."""
        return f"{self.collection_path(namespace)}/{quote(name, safe='')}"


JOBS = ApiResource(f"/apis/{API_VERSION}", "alignmentjobs", KIND)
PODS = ApiResource("/api/v1", "pods", "Pod")
SECRETS = ApiResource("/api/v1", "secrets", "Secret")
CONFIG_MAPS = ApiResource("/api/v1", "configmaps", "ConfigMap")
SERVICES = ApiResource("/api/v1", "services", "Service")
NETWORK_POLICIES = ApiResource("/apis/networking.k8s.io/v1", "networkpolicies", "NetworkPolicy")
DISRUPTION_BUDGETS = ApiResource("/apis/policy/v1", "poddisruptionbudgets", "PodDisruptionBudget")
WORKLOADS = ApiResource("/apis/kueue.x-k8s.io/v1beta2", "workloads", "Workload")
RESOURCE_FLAVORS = ApiResource("/apis/kueue.x-k8s.io/v1beta2", "resourceflavors", "ResourceFlavor")
WORKLOAD_PRIORITY_CLASSES = ApiResource(
    "/apis/kueue.x-k8s.io/v1beta2", "workloadpriorityclasses", "WorkloadPriorityClass"
)
PRIORITY_CLASSES = ApiResource("/apis/scheduling.k8s.io/v1", "priorityclasses", "PriorityClass")
EVENTS = ApiResource("/apis/events.k8s.io/v1", "events", "Event")


def resource_version(metadata: Mapping[str, Any]) -> int:
    """Return the resourceVersion as a number: within one kind, greater is newer. 0: it is not a number."""
    try:
        return int(metadata.get("resourceVersion") or 0)
    except ValueError:
        return 0
