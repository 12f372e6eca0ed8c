"""Node object of a simulated node, and its heartbeat."""

import asyncio
from collections.abc import Mapping

from .pod_status import now
from .rest import Rest

ADDRESS = "192.0.2.10"
PLENTY = {"cpu": "1000000", "memory": "1000Ti", "ephemeral-storage": "1000Ti", "pods": "100000"}
_HEARTBEAT_SECONDS = 10.0
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


async def register(rest: Rest, name: str, capacity: Mapping[str, str]) -> None:
    """Create the node in state Ready. Raises RuntimeError when the API server refuses the node."""
    body = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {
            "capacity": dict(capacity),
            "allocatable": dict(capacity),
            "addresses": [{"type": "InternalIP", "address": ADDRESS}],
            "conditions": [
                {"type": "Ready", "status": "True", "reason": "Simulated", "lastHeartbeatTime": now()}
            ],
        },
    }
    code, answer = await rest.call("POST", "/api/v1/nodes", body)
    if code not in (201, 409):
        raise RuntimeError(f"the node {name} was refused: {answer.get('message')}")


async def beat(rest: Rest, name: str) -> None:
    """Renew the node's lease for ever: a node whose lease is not renewed loses its pods."""
    while True:
        moment = now().replace("Z", ".000000Z")
        spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": moment}
        code, _ = await rest.call("PATCH", f"{_LEASES}/{name}", {"spec": spec}, "merge-patch+json")
        if code == 404:
            await rest.call("POST", _LEASES, {"metadata": {"name": name}, "spec": spec})
        await asyncio.sleep(_HEARTBEAT_SECONDS)


async def remove(rest: Rest, name: str) -> None:
    """Delete the node."""
    await rest.call("DELETE", f"/api/v1/nodes/{name}")
