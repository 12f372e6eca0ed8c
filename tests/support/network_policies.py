"""Evaluates the egress of NetworkPolicies as Kubernetes documents it, for one pod and one destination."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True)
class Destination:
    """An address and a port; for a pod also its namespace and labels."""

    address: str
    port: int
    protocol: str = "TCP"
    #: None: no pod of the cluster.
    namespace: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)


def may_connect(policies: Iterable[Json], pod: Json, target: Destination) -> bool:
    """Return True if the pod may connect: no policy for egress selects it, or one that does allows it."""
    namespace, labels = pod["metadata"]["namespace"], pod["metadata"]["labels"]
    selecting = [
        policy["spec"]
        for policy in policies
        if policy["metadata"]["namespace"] == namespace
        and "Egress" in policy["spec"]["policyTypes"]
        and _selects(policy["spec"]["podSelector"], labels)
    ]
    return not selecting or any(
        _allows(rule, namespace, target) for spec in selecting for rule in spec.get("egress", [])
    )


def _allows(rule: Json, own_namespace: str, target: Destination) -> bool:
    """Return True if a rule allows the destination. No list, or an empty one, stands for everything."""
    peers, ports = rule.get("to") or [], rule.get("ports") or []
    return (not peers or any(_is_peer(peer, own_namespace, target) for peer in peers)) and (
        not ports or any(_is_port(port, target) for port in ports)
    )


def _is_port(port: Json, target: Destination) -> bool:
    last = port.get("endPort", port["port"])
    return port["protocol"] == target.protocol and port["port"] <= target.port <= last


def _is_peer(peer: Json, own_namespace: str, target: Destination) -> bool:
    if "ipBlock" in peer:
        assert peer.keys() == {"ipBlock"}
        address, block = ip_address(target.address), peer["ipBlock"]
        for excluded in block.get("except", []):
            # The API server refuses other exceptions.
            assert ip_network(excluded).prefixlen > ip_network(block["cidr"]).prefixlen
            assert ip_network(excluded)[0] in ip_network(block["cidr"])
        return address in ip_network(block["cidr"]) and not any(
            address in ip_network(excluded) for excluded in block.get("except", [])
        )
    if target.namespace is None:
        return False
    if "namespaceSelector" in peer:
        in_namespace = _selects(peer["namespaceSelector"], {"kubernetes.io/metadata.name": target.namespace})
    else:
        in_namespace = target.namespace == own_namespace
    return in_namespace and _selects(peer.get("podSelector", {}), target.labels)


def _selects(selector: Json, labels: Mapping[str, str]) -> bool:
    assert selector.keys() <= {"matchLabels"}, selector
    return selector.get("matchLabels", {}).items() <= labels.items()
