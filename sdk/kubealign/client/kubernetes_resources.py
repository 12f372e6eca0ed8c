"""API paths of the resources used by the client."""

from dataclasses import dataclass
from urllib.parse import quote

from kubealign.spec.job import API_VERSION


@dataclass(frozen=True)
class Resource:
    """Kind of API object. `base` is /api/v1 or /apis/GROUP/VERSION."""

    base: str
    plural: str

    def collection(self, namespace: str | None = None) -> str:
        """Return the path of all objects, in one namespace or in every namespace."""
        namespace_path = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
        return f"{self.base}{namespace_path}/{self.plural}"

    def named(self, namespace: str, name: str) -> str:
        """Return the path of one object."""
        return f"{self.collection(namespace)}/{quote(name, safe='')}"


JOBS = Resource(f"/apis/{API_VERSION}", "alignmentjobs")
PODS = Resource("/api/v1", "pods")
EVENTS = Resource("/apis/events.k8s.io/v1", "events")
SERVICES = Resource("/api/v1", "services")
