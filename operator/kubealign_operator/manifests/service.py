"""The headless Service through which a job's pods resolve each other."""

from typing import Any

from kubealign.pod_contract import GRPC_PORT, METRICS_PORT, NATS_PORT
from kubealign_operator import names
from kubealign_operator.manifests.context import RenderContext
from kubealign_operator.manifests.metadata import object_metadata


def service(context: RenderContext) -> dict[str, Any]:
    """Build the headless Service.

    Unready pods are published: the ranks of a group connect before they are ready.
    """
    ports = {"grpc": GRPC_PORT, "metrics": METRICS_PORT, "nats": NATS_PORT}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": object_metadata(context, names.peers(context.name)),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {names.UID_LABEL: context.uid},
            "ports": [{"name": name, "port": port, "targetPort": port} for name, port in ports.items()],
        },
    }
