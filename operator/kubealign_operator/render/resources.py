"""What is set aside for a container when nobody says so."""

from collections.abc import Mapping
from typing import Any

from kubealign.process import Role
from kubealign_operator.render.platform import Platform
from kubealign_operator.render.reading import mapping

_ROLE = {"requests": {"cpu": "500m", "memory": "2Gi"}}
_SMALL = {"requests": {"cpu": "100m", "memory": "256Mi"}}
_REQUESTS = {Role.NATS: _SMALL, Role.DRIVER: {"requests": {"cpu": "250m", "memory": "1Gi"}}}


def default_resources(platform: Platform, role: Role) -> dict[str, Any]:
    """requests and limits of the role's container before any template."""
    held: Mapping[str, Any] = platform.default_resources.get(role, _REQUESTS.get(role, _ROLE))
    return {kind: dict(mapping(held.get(kind))) for kind in ("requests", "limits") if held.get(kind)}


def settle(container: dict[str, Any], chosen: Mapping[str, Any]) -> None:
    """A default request gives way to a limit that a template chose: it might lie above it, which the API
    refuses. `chosen`: the resources that the templates set."""
    resources, wanted = mapping(container.get("resources")), mapping(chosen.get("requests"))
    limited = mapping(chosen.get("limits"))
    requests = {
        name: amount
        for name, amount in mapping(resources.get("requests")).items()
        if name in wanted or name not in limited
    }
    container["resources"] = {**resources, "requests": requests}
