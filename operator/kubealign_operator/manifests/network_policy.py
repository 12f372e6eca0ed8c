"""The NetworkPolicies of a job's pods: one for all of them, and one for each group that may leave the job."""

from typing import Any

from kubealign.pod_contract import METRICS_PORT
from kubealign.spec.base import MAX_PROCESSES_PER_POD
from kubealign_operator import names
from kubealign_operator.manifests.context import RenderContext
from kubealign_operator.manifests.egress import Rule, common_egress
from kubealign_operator.manifests.metadata import object_metadata


def peers_policy(context: RenderContext) -> dict[str, Any]:
    """Build the NetworkPolicy of all pods.

    Ingress: from the job itself, and from any pod to the metrics ports, which require a client certificate,
    and to the rollout workers' endpoint for external agents, which requires a token. Egress: to the job
    itself, DNS and Redis.
    """
    pods = {"podSelector": {"matchLabels": {names.UID_LABEL: context.uid}}}
    spec = {
        **pods,
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [
            {"from": [pods]},
            {
                "from": [{"namespaceSelector": {}}],
                "ports": [
                    {
                        "protocol": "TCP",
                        "port": METRICS_PORT,
                        "endPort": METRICS_PORT + MAX_PROCESSES_PER_POD - 1,
                    }
                ],
            },
            *_agents_ingress(context),
        ],
        "egress": common_egress(context, pods),
    }
    return _policy(context, names.peers(context.name), spec)


def _agents_ingress(context: RenderContext) -> list[dict[str, Any]]:
    """Return the rule that admits external agents; empty if the job has none."""
    rollout = context.job.spec.effective_rollout
    agents = None if rollout is None else rollout.external_agents
    if agents is None:
        return []
    return [
        {"from": [{"namespaceSelector": {}}], "ports": [{"protocol": "TCP", "port": agents.pod_port}]},
    ]


def egress_policy(context: RenderContext, group: str, rules: list[Rule]) -> dict[str, Any]:
    """Build the NetworkPolicy that lets the pods of one group connect to more than the others."""
    labels = {names.UID_LABEL: context.uid, names.GROUP_LABEL: group}
    spec = {"podSelector": {"matchLabels": labels}, "policyTypes": ["Egress"], "egress": rules}
    return _policy(context, names.egress(context.name, group), spec)


def _policy(context: RenderContext, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": object_metadata(context, name),
        "spec": spec,
    }
