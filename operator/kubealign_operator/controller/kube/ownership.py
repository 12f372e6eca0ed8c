"""Jobs as owners of other objects: the key of a job, and the owned kinds."""

from collections.abc import Mapping
from dataclasses import dataclass

from kubealign.kube.resources import (
    CONFIG_MAPS,
    DISRUPTION_BUDGETS,
    NETWORK_POLICIES,
    PODS,
    SECRETS,
    SERVICES,
    WORKLOADS,
    ApiResource,
)

#: Kinds of objects that a job owns.
OWNED: Mapping[str, ApiResource] = {
    resource.kind: resource
    for resource in (
        PODS,
        SECRETS,
        CONFIG_MAPS,
        SERVICES,
        NETWORK_POLICIES,
        DISRUPTION_BUDGETS,
        WORKLOADS,
    )
}


@dataclass(frozen=True, order=True)
class JobKey:
    """Namespace and name of a job."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"
