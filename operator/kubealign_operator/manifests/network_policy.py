"""The NetworkPolicy of a job's pods."""

from typing import Any

from kubealign.pod_contract import METRICS_PORT
from kubealign.spec.job import AlignmentJob
from kubealign.spec.sections.data import HuggingFaceDataset
from kubealign.spec.sections.models import HuggingFaceModel
from kubealign_operator import names
from kubealign_operator.kube_views.spec_search import spec_parts
from kubealign_operator.manifests.context import RenderContext
from kubealign_operator.manifests.metadata import object_metadata

#: Every pod, as blocks of addresses do not match pods in every network plugin, and every other address except
#: link-local ones and that of the EC2 metadata service, which hand out the node's cloud credentials.
_ANYWHERE: list[dict[str, Any]] = [
    {"namespaceSelector": {}},
    {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16"]}},
    {"ipBlock": {"cidr": "::/0", "except": ["fd00:ec2::254/128", "fe80::/10"]}},
]


def network_policy(context: RenderContext) -> dict[str, Any]:
    """Build the NetworkPolicy.

    Ingress: from the job itself, and from anywhere to the metrics port, which requires a client
    certificate. Egress: to the job itself, DNS and Redis; to anywhere but the node's metadata service only
    if the job downloads from a hub or reports metrics to an online tracker.
    """
    pods = {"podSelector": {"matchLabels": {names.UID_LABEL: context.uid}}}
    dns = [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]
    egress: list[dict[str, Any]] = [
        {"to": [pods]},
        {"ports": dns},
        {"ports": [{"protocol": "TCP", "port": context.platform.redis_port}]},
    ]
    if uses_hub(context.job) or uses_online_tracker(context.job):
        egress.append({"to": _ANYWHERE})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": object_metadata(context, names.peers(context.name)),
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
            "egress": egress,
        },
    }


def uses_online_tracker(job: AlignmentJob) -> bool:
    """Return True when the driver sends metrics to a tracker outside the cluster."""
    return any(tracker.sends_online for tracker in job.spec.trackers)


def uses_hub(job: AlignmentJob) -> bool:
    """Return True when the job downloads from a hub. A data set named by a path is no download."""
    data_sets = [part.name for _, part in spec_parts(job.spec, HuggingFaceDataset)]
    return any(True for _ in spec_parts(job.spec, HuggingFaceModel)) or any(
        not name.startswith(("/", ".", "~")) for name in data_sets
    )
