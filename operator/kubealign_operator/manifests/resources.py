"""Default resource requests of containers."""

from collections.abc import Mapping
from typing import Any

from kubealign.process_settings import Role
from kubealign_operator.manifests.platform import Platform
from kubealign_operator.kube_views.lenient_json import mapping

_ROLE_RESOURCES = {"requests": {"cpu": "500m", "memory": "2Gi"}}
_NATS_RESOURCES = {"requests": {"cpu": "100m", "memory": "256Mi"}}
_BUILT_IN_RESOURCES = {Role.NATS: _NATS_RESOURCES, Role.DRIVER: {"requests": {"cpu": "250m", "memory": "1Gi"}}}


def default_resources(platform: Platform, role: Role) -> dict[str, Any]:
    """Return requests and limits of the role's container before any template is applied."""
    resources: Mapping[str, Any] = platform.default_resources.get(role, _BUILT_IN_RESOURCES.get(role, _ROLE_RESOURCES))
    return {kind: dict(mapping(resources.get(kind))) for kind in ("requests", "limits") if resources.get(kind)}


def drop_requests_above_limits(container: dict[str, Any], chosen: Mapping[str, Any]) -> None:
    """Drop the default requests for which a template sets a limit.

    The default might exceed that limit, which the API server rejects.

    Args:
        container: The container, changed in place.
        chosen: Resources that the templates set.
    """
    resources, explicit = mapping(container.get("resources")), mapping(chosen.get("requests"))
    limits = mapping(chosen.get("limits"))
    requests = {
        name: amount
        for name, amount in mapping(resources.get("requests")).items()
        if name in explicit or name not in limits
    }
    container["resources"] = {**resources, "requests": requests}
