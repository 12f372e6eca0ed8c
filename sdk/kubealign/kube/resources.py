"""API paths of the resources used by the client."""

from dataclasses import dataclass
from urllib.parse import quote

from kubealign.spec.job import API_VERSION


@dataclass(frozen=True)
class ResourcePath:
    """Kind of API object. `base` is /api/v1 or /apis/GROUP/VERSION."""

    base: str
    plural: str

    def collection_path(self, namespace: str | None = None) -> str:
        """Return the path of all objects, in one namespace or in every namespace."""
        namespace_path = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
        return f"{self.base}{namespace_path}/{self.plural}"

    def object_path(self, namespace: str, name: str) -> str:
        """Return the path of one object."""
        return f"{self.collection_path(namespace)}/{quote(name, safe='')}"


JOBS = ResourcePath(f"/apis/{API_VERSION}", "alignmentjobs")
PODS = ResourcePath("/api/v1", "pods")
EVENTS = ResourcePath("/apis/events.k8s.io/v1", "events")
SERVICES = ResourcePath("/api/v1", "services")
