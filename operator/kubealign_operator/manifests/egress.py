"""Egress rules of a job's NetworkPolicies: of all pods, and of the groups that may leave the job.

NetworkPolicies add up: a pod may connect to what any policy that selects it allows.
"""

from collections.abc import Iterable, Mapping, Sequence
from ipaddress import ip_network
from typing import Any
from urllib.parse import urlsplit

from kubealign.process_settings import Role
from kubealign.role_specs import PREPARE
from kubealign.roles import Process
from kubealign.spec.job import AlignmentJob
from kubealign.spec.pods.egress import METADATA_BLOCKS, EgressRule, within_block
from kubealign.spec.sections.data import DataSource, HuggingFaceDataset
from kubealign.spec.sections.models import HuggingFaceModel, Model
from kubealign_operator.kube_views.spec_search import spec_parts
from kubealign_operator.manifests.context import Platform, RenderContext

Rule = dict[str, Any]
Peer = dict[str, Any]

#: Label of every namespace with its name, set by the API server.
NAMESPACE_NAME = "kubernetes.io/metadata.name"
_DEFAULT_PORTS = {"http": 80, "https": 443}
_ALL_ADDRESSES = ("0.0.0.0/0", "::/0")
_OFFLINE = {"name": "HF_HUB_OFFLINE", "value": "1"}


def common_egress(context: RenderContext, own_pods: Peer) -> list[Rule]:
    """Return the rules of all pods: to the job itself, DNS and Redis.

    Args:
        own_pods: Peer that selects the pods of the job.
    """
    # DNS may be a pod, the node's cache on a link-local address or a server outside the cluster.
    protocols = ("UDP", "TCP")
    ports = context.platform.dns_ports
    dns: Rule = {"ports": [{"protocol": name, "port": port} for port in ports for name in protocols]}
    rules: list[Rule] = [{"to": [own_pods]}, dns]
    platform = context.platform
    if platform.redis_peers is not None:
        rules.append(_server_rule(platform.redis_peers, platform.redis_port))
    if platform.otlp_endpoint:
        url = urlsplit(platform.otlp_endpoint)
        rules.append(_server_rule(platform.otlp_peers, url.port or _DEFAULT_PORTS[url.scheme]))
    return rules


def _server_rule(peers: Sequence[Mapping[str, Any]], port: int) -> Rule:
    """Return the rule to a server of the platform; without peers, to its port at any address."""
    rule: Rule = {"ports": [{"protocol": "TCP", "port": port}]}
    return {"to": [dict(peer) for peer in peers], **rule} if peers else rule


def group_egress(context: RenderContext) -> dict[str, list[Rule]]:
    """Return process group -> its rules in addition to the common ones; groups without any are absent."""
    job, platform = context.job, context.platform
    rules: dict[str, list[Rule]] = {}
    has_copies = job.spec.checkpoint.uri is not None
    if uses_hub(job) or uses_storage_inputs(job) or has_copies:
        rules[PREPARE] = [_outside_service(platform)]
    if uses_online_tracker(job) or has_copies:
        rules[Role.DRIVER.value] = [_outside_service(platform)]
    for group, entries in _configured_egress(job).items():
        converted = [rule for entry in entries if (rule := _convert(entry, platform)) is not None]
        if converted:
            rules[group] = rules.get(group, []) + converted
    return rules


def offline_environment(job: AlignmentJob, process: Process) -> list[dict[str, Any]]:
    """Return the variables with which the Hugging Face libraries of a process make no request to the hub.

    Only `prepare` downloads. The variables are absent where a policy lets the process leave the job, as the
    user's code, or a tracker that writes to the hub, may then use these libraries.
    """
    leaves = process.group == PREPARE or process.group in _configured_egress(job)
    leaves = leaves or (process.group == Role.DRIVER and uses_online_tracker(job))
    return [] if leaves else [_OFFLINE]


def uses_online_tracker(job: AlignmentJob) -> bool:
    """Return True when the driver sends metrics to a tracker outside the cluster."""
    return any(tracker.sends_online for tracker in job.spec.trackers)


def uses_hub(job: AlignmentJob) -> bool:
    """Return True when the job downloads from a hub. A data set named by a path is no download."""
    data_sets = [part.name for _, part in spec_parts(job.spec, HuggingFaceDataset)]
    return any(True for _ in spec_parts(job.spec, HuggingFaceModel)) or any(
        not name.startswith(("/", ".", "~")) for name in data_sets
    )


def uses_storage_inputs(job: AlignmentJob) -> bool:
    """Return True when the job downloads models or rows from object storage."""
    uris = [part.uri for _, part in spec_parts(job.spec, Model)]
    uris += [part.uri for _, part in spec_parts(job.spec, DataSource)]
    return any(uri is not None for uri in uris)


def _configured_egress(job: AlignmentJob) -> Mapping[str, list[EgressRule]]:
    """Return process group -> the fields `egress` of the code that runs in it; groups without are absent."""
    spec = job.spec
    egress = {f"{Role.REWARD}-{reward.name}": reward.egress for reward in spec.rewards}
    egress |= {f"{Role.REWARD}-{score.name}": score.egress for score in spec.validation_scores}
    if spec.samples:
        generating = Role.TRAINER if spec.rollout_with_trainer else Role.ROLLOUT
        egress[generating.value] = spec.rollout.egress
        if spec.environment_replicas:
            egress[Role.ENVIRONMENT.value] = spec.rollout.egress
        if spec.rollout.tool_calls is not None and spec.rollout.tool_calls.mcp_servers:
            # The preparation lists the tools of the servers.
            egress[PREPARE] = spec.rollout.egress
    return {group: rules for group, rules in egress.items() if rules}


def _outside_service(platform: Platform) -> Rule:
    """Return the rule to a hub, a tracker or object storage, whose address is not known.

    It may be a pod of the cluster (a mirror of the hub, MLflow, MinIO), which blocks of addresses do not
    match in every network plugin.
    """
    return {"to": [{"namespaceSelector": {}}, *_blocks(_ALL_ADDRESSES, (), platform)]}


def _convert(entry: EgressRule, platform: Platform) -> Rule | None:
    """Return a rule of the spec as a rule of a NetworkPolicy; None: no address is left.

    An empty list of destinations would allow every one.
    """
    if entry.namespace is not None:
        # In one peer: pods with the labels in that namespace. An empty selector selects all of them.
        pod_selector = {"matchLabels": dict(entry.namespace.pod_labels)} if entry.namespace.pod_labels else {}
        namespace_selector = {"matchLabels": {NAMESPACE_NAME: entry.namespace.name}}
        peers: list[Peer] = [{"namespaceSelector": namespace_selector, "podSelector": pod_selector}]
    elif entry.ip_block is not None:
        peers = _blocks((entry.ip_block.cidr,), entry.ip_block.exceptions, platform)
    else:
        peers = _blocks(_ALL_ADDRESSES, (), platform)
    ports = [
        {"protocol": str(port.protocol), "port": port.port}
        | ({} if port.end_port is None else {"endPort": port.end_port})
        for port in entry.ports
    ]
    return ({"to": peers} | ({"ports": ports} if ports else {})) if peers else None


def _blocks(cidrs: Iterable[str], exceptions: Iterable[str], platform: Platform) -> list[Peer]:
    """Return peers for blocks of addresses, without metadata services and the platform's exceptions.

    Kubernetes wants exceptions smaller than their block: a block within an exception is left out.
    """
    excluded = [*METADATA_BLOCKS, *platform.egress_except, *exceptions]
    return [
        {"ipBlock": {"cidr": cidr} | _except(cidr, excluded)}
        for cidr in cidrs
        if not any(within_block(cidr, block) for block in excluded)
    ]


def _except(cidr: str, excluded: Iterable[str]) -> dict[str, list[str]]:
    inside = {block for block in excluded if within_block(block, cidr)}
    ordered = sorted(inside, key=lambda block: (ip_network(block).version, ip_network(block)))
    return {"except": ordered} if ordered else {}
