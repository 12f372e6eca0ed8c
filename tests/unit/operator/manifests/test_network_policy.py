"""Destinations that each pod of a job may connect to, over all NetworkPolicies of the job."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from kubealign.spec.job import AlignmentJob
from kubealign_operator.manifests.context import Platform
from kubealign_operator.manifests.egress import uses_hub, uses_online_tracker
from support.network_policies import Destination, may_connect
from support.rendering.cluster import Cluster
from support.rendering.jobs import PLATFORM, Json, sft

API_SERVER = "10.96.0.1"
CONTROL_PLANE = "172.16.0.0/28"
REDIS_LABELS = {"app.kubernetes.io/component": "redis", "app.kubernetes.io/instance": "align"}
REDIS_PEER = {
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kubealign"}},
    "podSelector": {"matchLabels": REDIS_LABELS},
}
IN_CLUSTER = replace(
    PLATFORM, redis_peers=(REDIS_PEER,), egress_except=(f"{API_SERVER}/32", CONTROL_PLANE, "fd00:96::1/128")
)

REDIS = Destination("10.1.0.9", 6379, namespace="kubealign", labels=REDIS_LABELS)
FALSE_REDIS = Destination("10.1.0.8", 6379, namespace="kubealign", labels={"app": "other"})
HOST_AT_REDIS_PORT = Destination("203.0.113.7", 6379)
DNS = Destination("10.96.0.10", 53, "UDP")
HOST = Destination("203.0.113.7", 443)
HOST_V6 = Destination("2001:db8::7", 443)
JUDGE = Destination("10.1.0.7", 8000, namespace="judges", labels={"app": "judge"})
OTHER_POD = Destination("10.1.0.6", 8000, namespace="judges", labels={"app": "other"})
FORBIDDEN = [
    Destination("169.254.169.254", 80),
    Destination("169.254.170.2", 80),
    Destination("fd00:ec2::254", 80),
    Destination("fe80::a9fe:a9fe", 80),
    Destination(API_SERVER, 443),
    Destination("172.16.0.3", 6443),
    Destination("fd00:96::1", 443),
]
MODEL = {"model": {"huggingFace": {"repo": "acme/base"}}}
ONLINE = [{"name": "curves", "swanLab": {}}]


def cluster(job: Json, platform: Platform = IN_CLUSTER) -> tuple[list[Json], dict[str, Json]]:
    """Return the NetworkPolicies and the pods, by process group, of a running job."""
    running = Cluster(job, platform=platform)
    created: list[Json] = []
    for _ in range(4):
        created += running.step().create
        running.serve()
        if "prepare" in running.short_names():
            running.end(running.name("prepare"), 0)
    assert running.phase == "Running"
    pods = {
        item["metadata"]["labels"]["kubealign.dev/group"]: item for item in created if item["kind"] == "Pod"
    }
    return [item for item in created if item["kind"] == "NetworkPolicy"], pods


def reachable(job: Json, target: Destination, platform: Platform = IN_CLUSTER) -> set[str]:
    """Return the groups whose pods may connect to the destination."""
    policies, pods = cluster(job, platform)
    return {group for group, pod in pods.items() if may_connect(policies, pod, target)}


def rloo(**rollout: Any) -> Json:
    """Return a job with the function rewards `plain` and `judge`, of which the second has egress."""
    job = sft()
    prompts = {"prompts": {"source": {"volume": {"claimName": "data", "path": "train.jsonl"}}}}
    function = {"module": "package.module:score"}
    job["spec"] |= {
        "algorithm": {"rloo": {}},
        "data": prompts,
        "rewards": [{"name": "plain", "function": function}, {"name": "judge", "function": function}],
        "rollout": rollout,
    }
    return job


def calling_tools(tools: Json, **spec: Any) -> Json:
    """Return a job whose policy calls tools in its model's own format, with egress to a namespace."""
    job = rloo(workflow={"toolCalls": tools}, egress=[{"namespace": {"name": "judges"}}])
    job["spec"]["data"]["prompts"]["format"] = {"chat": {}}
    job["spec"] |= spec
    return job


def judging(*egress: Json) -> Json:
    job = rloo()
    job["spec"]["rewards"][1]["egress"] = list(egress)
    return job


ALL = {"prepare", "nats", "trainer", "driver"}
SAMPLING = ALL | {"reference", "reward-plain", "reward-judge", "rollout"}

CASES: list[tuple[str, Json, Mapping[Destination, set[str]]]] = [
    (
        "offline",
        sft(),
        {DNS: ALL, REDIS: ALL, FALSE_REDIS: set(), HOST: set(), HOST_AT_REDIS_PORT: set(), JUDGE: set()},
    ),
    (
        "model of the hub",
        sft(policy=MODEL),
        {DNS: ALL, REDIS: ALL, HOST: {"prepare"}, HOST_V6: {"prepare"}, JUDGE: {"prepare"}},
    ),
    (
        "copies in object storage",
        sft(checkpoint={"volume": {"claimName": "runs"}, "uri": "s3://bucket/jobs/sft"}),
        {DNS: ALL, REDIS: ALL, HOST: {"prepare", "driver"}, JUDGE: {"prepare", "driver"}},
    ),
    (
        "a model in object storage",
        sft(policy={"model": {"uri": "s3://bucket/models/base"}}),
        {REDIS: ALL, HOST: {"prepare"}, JUDGE: {"prepare"}},
    ),
    (
        "rows in object storage",
        sft(data={"demonstrations": {"source": {"uri": "s3://bucket/rows/*.jsonl"}}}),
        {REDIS: ALL, HOST: {"prepare"}, JUDGE: {"prepare"}},
    ),
    ("online tracker", sft(trackers=ONLINE), {REDIS: ALL, HOST: {"driver"}, JUDGE: {"driver"}}),
    (
        "model of the hub and tracker",
        sft(policy=MODEL, trackers=ONLINE),
        {HOST: {"prepare", "driver"}, HOST_V6: {"prepare", "driver"}},
    ),
    ("rewards without egress", rloo(), {REDIS: SAMPLING, HOST: set(), JUDGE: set()}),
    (
        "a reward anywhere at a port",
        judging({"anywhere": {}, "ports": [{"port": 443}]}),
        {
            REDIS: SAMPLING,
            HOST: {"reward-judge"},
            HOST_V6: {"reward-judge"},
            replace(HOST, port=444): set(),
            replace(HOST, protocol="UDP"): set(),
            HOST_AT_REDIS_PORT: set(),
        },
    ),
    (
        "a reward to pods of a namespace",
        judging({"namespace": {"name": "judges", "podLabels": {"app": "judge"}}, "ports": [{"port": 8000}]}),
        {JUDGE: {"reward-judge"}, OTHER_POD: set(), replace(JUDGE, port=22): set(), HOST: set()},
    ),
    (
        "a reward to a namespace",
        judging({"namespace": {"name": "judges"}}),
        {JUDGE: {"reward-judge"}, OTHER_POD: {"reward-judge"}, replace(JUDGE, namespace="team"): set()},
    ),
    (
        "a reward to a block",
        judging(
            {
                "ipBlock": {"cidr": "203.0.113.0/24", "except": ["203.0.113.128/25"]},
                "ports": [{"port": 440, "endPort": 450}],
            }
        ),
        {
            HOST: {"reward-judge"},
            replace(HOST, port=451): set(),
            replace(HOST, address="203.0.113.129"): set(),
            replace(HOST, address="198.51.100.1"): set(),
            HOST_V6: set(),
        },
    ),
    # Without addresses, a rule would allow all of them.
    (
        "a reward to the control plane alone",
        judging({"ipBlock": {"cidr": "172.16.0.0/30"}}),
        {HOST: set(), Destination("172.16.0.1", 443): set()},
    ),
    (
        "a reward to a block around the control plane",
        judging({"ipBlock": {"cidr": "172.16.0.0/12"}}),
        {HOST: set(), Destination("172.16.0.16", 443): {"reward-judge"}},
    ),
    ("a reward to all addresses", judging({"ipBlock": {"cidr": "0.0.0.0/0"}}), {HOST: {"reward-judge"}}),
    (
        "a workflow",
        rloo(workflow={"function": {"module": "package.module:play"}}, egress=[{"anywhere": {}}]),
        {HOST: {"rollout"}, HOST_V6: {"rollout"}, REDIS: SAMPLING},
    ),
    (
        "inference servers",
        rloo(engine={"openai": {"url": "http://vllm:8000"}}, egress=[{"namespace": {"name": "judges"}}]),
        {JUDGE: {"rollout"}, HOST: set(), REDIS: SAMPLING},
    ),
    # The preparation lists the tools of MCP servers, and reaches nothing else because of functions.
    (
        "tools of an MCP server",
        calling_tools({"mcpServers": [{"name": "search", "http": {"url": "http://judges:8000/mcp"}}]}),
        {JUDGE: {"rollout", "prepare"}, OTHER_POD: {"rollout", "prepare"}, HOST: set(), REDIS: SAMPLING},
    ),
    (
        "tools of an MCP server and a model of the hub",
        calling_tools({"mcpServers": [{"name": "search", "stdio": {"command": "search"}}]}, policy=MODEL),
        {JUDGE: {"rollout", "prepare"}, HOST: {"prepare"}, REDIS: SAMPLING},
    ),
    (
        "functions as tools",
        calling_tools({"tools": [{"function": {"module": "package.module:search"}}]}),
        {JUDGE: {"rollout"}, HOST: set(), REDIS: SAMPLING},
    ),
    (
        "a workflow in the trainer",
        rloo(
            placement="WithTrainer",
            workflow={"function": {"module": "package.module:play"}},
            egress=[{"anywhere": {}}],
        ),
        {HOST: {"trainer"}, REDIS: SAMPLING - {"rollout"}},
    ),
]


@pytest.mark.parametrize(("job", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_destinations_by_role(job: Json, expected: Mapping[Destination, set[str]]) -> None:
    policies, pods = cluster(job)
    for target, groups in expected.items():
        assert {group for group, pod in pods.items() if may_connect(policies, pod, target)} == groups, target
    for target in FORBIDDEN:
        assert not {group for group, pod in pods.items() if may_connect(policies, pod, target)}, target


def test_dns_at_the_configured_ports() -> None:
    behind_the_service = replace(DNS, port=5353)
    assert reachable(sft(), behind_the_service) == set()
    platform = replace(IN_CLUSTER, dns_ports=(53, 5353))
    assert reachable(sft(), behind_the_service, platform) == reachable(sft(), DNS, platform) == ALL


def test_pods_reach_their_own_job_and_no_other() -> None:
    policies, pods = cluster(sft())
    driver = pods["driver"]["metadata"]
    own = Destination("10.1.0.2", 7070, namespace=driver["namespace"], labels=driver["labels"])
    other = replace(own, labels=driver["labels"] | {"kubealign.dev/job-uid": "another"})
    for pod in pods.values():
        assert may_connect(policies, pod, own)
        assert not may_connect(policies, pod, other)


def test_only_the_collector_is_reached_for_traces() -> None:
    collector = Destination("10.1.0.9", 4318, namespace="observability", labels={"app": "collector"})
    peers = ({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "observability"}}},)
    traced = replace(IN_CLUSTER, otlp_endpoint="http://collector.observability.svc:4318", otlp_peers=peers)
    assert reachable(sft(), collector) == set()
    assert reachable(sft(), collector, traced) == ALL
    assert reachable(sft(), replace(collector, port=80), traced) == set()
    assert reachable(sft(), replace(collector, namespace="judges"), traced) == set()
    # Without peers the endpoint may be anywhere; without a port it has that of the scheme.
    anywhere = replace(IN_CLUSTER, otlp_endpoint="https://otlp.example")
    assert reachable(sft(), HOST, anywhere) == ALL
    assert reachable(sft(), replace(HOST, port=80), anywhere) == set()


def test_redis_outside_the_cluster() -> None:
    elsewhere = replace(IN_CLUSTER, redis_peers=())
    assert reachable(sft(), HOST_AT_REDIS_PORT, elsewhere) == ALL
    named = replace(IN_CLUSTER, redis_peers=({"ipBlock": {"cidr": "203.0.113.7/32"}},))
    assert reachable(sft(), HOST_AT_REDIS_PORT, named) == ALL
    assert reachable(sft(), HOST, named) == set()
    assert reachable(sft(), replace(HOST_AT_REDIS_PORT, address="203.0.113.8"), named) == set()
    assert reachable(sft(), HOST_AT_REDIS_PORT, replace(IN_CLUSTER, redis_peers=None)) == set()


@pytest.mark.parametrize(
    ("job", "offline"),
    [
        (sft(), ALL - {"prepare", "nats"}),
        (sft(policy=MODEL), ALL - {"prepare", "nats"}),
        (sft(trackers=ONLINE), {"trainer"}),
        (judging({"namespace": {"name": "judges"}}), SAMPLING - {"prepare", "nats", "reward-judge"}),
    ],
)
def test_only_pods_that_leave_the_job_may_use_the_hub(job: Json, offline: set[str]) -> None:
    _, pods = cluster(job)
    variables = {
        group: {entry["name"]: entry.get("value") for entry in pod["spec"]["containers"][0]["env"]}
        for group, pod in pods.items()
    }
    assert {group for group, values in variables.items() if values.get("HF_HUB_OFFLINE") == "1"} == offline


def test_a_policy_is_created_once_and_again_when_it_is_gone() -> None:
    running = Cluster(sft(policy=MODEL, trackers=ONLINE), platform=IN_CLUSTER)
    running.step()
    names = {name for kind, name in running.objects if kind == "NetworkPolicy"}
    assert names == {"sft-peers", "sft-egress-prepare", "sft-egress-driver"}
    assert not [item for item in running.step().create if item["kind"] == "NetworkPolicy"]
    running.objects.remove(("NetworkPolicy", "sft-egress-driver"))
    created = [item["metadata"]["name"] for item in running.step().create if item["kind"] == "NetworkPolicy"]
    assert created == ["sft-egress-driver"]


@pytest.mark.parametrize(
    ("tracker", "sends"),
    [
        ({"tensorBoard": {}}, False),
        ({"jsonLines": {}}, False),
        ({"weightsAndBiases": {}}, True),
        ({"weightsAndBiases": {"mode": "Offline"}}, False),
        ({"mlflow": {}}, False),
        ({"mlflow": {"trackingUri": "https://mlflow.example"}}, True),
        ({"swanLab": {}}, True),
        ({"swanLab": {"mode": "Offline"}}, False),
        ({"trackio": {}}, False),
        ({"trackio": {"serverUrl": "https://trackio.example"}}, True),
        ({"trackio": {"space": "acme/curves"}}, True),
    ],
)
def test_trackers_that_send_metrics(tracker: dict[str, Any], sends: bool) -> None:
    job = AlignmentJob.model_validate(
        sft(trackers=[{"name": "here", "jsonLines": {}}, {"name": "it"} | tracker])
    )
    assert uses_online_tracker(job) is sends
    assert not uses_hub(job)
