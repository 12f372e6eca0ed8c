"""The NetworkPolicy of a job's pods."""

from typing import Any

from kubealign.pod import METRICS_PORT
from kubealign.spec.data import HuggingFaceDataset
from kubealign.spec.job import AlignmentJob
from kubealign.spec.models import HuggingFaceModel
from kubealign_operator.render import names
from kubealign_operator.render.metadata import object_metadata
from kubealign_operator.render.parts import parts
from kubealign_operator.render.scene import Scene


def network_policy(scene: Scene) -> dict[str, Any]:
    """Build the NetworkPolicy.

    Ingress: from the job itself, and from anywhere to the metrics port, which requires a client
    certificate.
    Egress: to the job itself, DNS and Redis; to anywhere only if the job downloads from a hub or reports
    metrics to
    an online tracker.
    """
    pods = {"podSelector": {"matchLabels": {names.UID_LABEL: scene.uid}}}
    dns = [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]
    egress: list[dict[str, Any]] = [
        {"to": [pods]},
        {"ports": dns},
        {"ports": [{"protocol": "TCP", "port": scene.platform.redis_port}]},
    ]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": object_metadata(scene, names.peers(scene.name)),
        "spec": {
            **pods,
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [
                {"from": [pods]},
                {
                    "from": [{"namespaceSelector": {}}],
                    "ports": [{"protocol": "TCP", "port": METRICS_PORT}],
                },
            ],
            "egress": [{}] if fetches(scene.job) or tracks(scene.job) else egress,
        },
    }


def tracks(job: AlignmentJob) -> bool:
    """Return True when the driver sends metrics to a tracker outside the cluster."""
    return any(tracker.online for tracker in job.spec.trackers)


def fetches(job: AlignmentJob) -> bool:
    """Return True when the job downloads from a hub. A data set named by a path is no download."""
    data_sets = [part.name for _, part in parts(job.spec, HuggingFaceDataset)]
    return any(True for _ in parts(job.spec, HuggingFaceModel)) or any(
        not name.startswith(("/", ".", "~")) for name in data_sets
    )
