"""API paths of the kinds that the operator uses."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ApiResource:
    """A kind of object. `base` is /api/v1 or /apis/GROUP/VERSION."""

    base: str
    plural: str
    kind: str

    def collection_path(self, namespace: str | None = None) -> str:
        """Return the path of all objects, in one namespace or in all."""
        inside = f"/namespaces/{namespace}" if namespace else ""
        return f"{self.base}{inside}/{self.plural}"

    def object_path(self, namespace: str, name: str) -> str:
        """Return the path of one object."""
        return f"{self.collection_path(namespace)}/{name}"


JOBS = ApiResource("/apis/kubealign.dev/v1alpha1", "alignmentjobs", "AlignmentJob")
PODS = ApiResource("/api/v1", "pods", "Pod")
SECRETS = ApiResource("/api/v1", "secrets", "Secret")
CONFIG_MAPS = ApiResource("/api/v1", "configmaps", "ConfigMap")
SERVICES = ApiResource("/api/v1", "services", "Service")
NETWORK_POLICIES = ApiResource("/apis/networking.k8s.io/v1", "networkpolicies", "NetworkPolicy")
EVENTS = ApiResource("/apis/events.k8s.io/v1", "events", "Event")

#: Kinds of objects that a job owns.
OWNED: Mapping[str, ApiResource] = {
    resource.kind: resource for resource in (PODS, SECRETS, CONFIG_MAPS, SERVICES, NETWORK_POLICIES)
}


@dataclass(frozen=True, order=True)
class JobKey:
    """Namespace and name of a job."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def owner_uid(metadata: Mapping[str, Any]) -> str | None:
    """Return the uid of the AlignmentJob that controls an object, or None."""
    for owner in metadata.get("ownerReferences") or ():
        if owner.get("controller") and owner.get("kind") == JOBS.kind:
            return str(owner.get("uid"))
    return None


def resource_version(metadata: Mapping[str, Any]) -> int:
    """Return the resourceVersion as a number: within one kind, greater is newer."""
    try:
        return int(metadata.get("resourceVersion") or 0)
    except ValueError:
        return 0
