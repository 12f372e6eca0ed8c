"""Where the kinds that a client touches live in the Kubernetes API."""

from dataclasses import dataclass
from urllib.parse import quote

from kubealign.spec.job import API_VERSION


@dataclass(frozen=True)
class Resource:
    """A kind of object: `base` is /api/v1 or /apis/GROUP/VERSION."""

    base: str
    plural: str

    def collection(self, namespace: str | None = None) -> str:
        """The path of all of them, in one namespace or in every one."""
        inside = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
        return f"{self.base}{inside}/{self.plural}"

    def named(self, namespace: str, name: str) -> str:
        """The path of one."""
        return f"{self.collection(namespace)}/{quote(name, safe='')}"


JOBS = Resource(f"/apis/{API_VERSION}", "alignmentjobs")
PODS = Resource("/api/v1", "pods")
EVENTS = Resource("/apis/events.k8s.io/v1", "events")
SERVICES = Resource("/api/v1", "services")
