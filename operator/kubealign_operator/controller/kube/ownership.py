"""Jobs as owners of other objects: the owned kinds, and the job that owns an object."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kubealign.kube.resources import (
    CONFIG_MAPS,
    JOBS,
    NETWORK_POLICIES,
    PODS,
    SECRETS,
    SERVICES,
    ApiResource,
)

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
