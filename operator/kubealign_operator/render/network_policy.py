"""Who may talk to a job's pods, and to whom they may talk."""

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
    """In: from the job itself, and to the metrics, which ask for a certificate. Out: to the job itself, DNS
    and Redis; anywhere only where something is fetched from a hub, or figures are sent to a tracker."""
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
    """Whether its driver sends figures out of the cluster's own."""
    return any(tracker.online for tracker in job.spec.trackers)


def fetches(job: AlignmentJob) -> bool:
    """Whether something of the job comes from a hub. A data set named by a folder does not."""
    data = [part.name for _, part in parts(job.spec, HuggingFaceDataset)]
    return any(True for _ in parts(job.spec, HuggingFaceModel)) or any(
        not name.startswith(("/", ".", "~")) for name in data
    )
