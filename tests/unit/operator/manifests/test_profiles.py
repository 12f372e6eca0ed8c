"""Pod profiles of the platform, chosen by a job or by a role, and pods on the network of their node."""

import json
from dataclasses import replace
from typing import Any

import pytest

from kubealign.pod_contract import ENV_SETTINGS
from support.rendering.cluster import Cluster
from support.rendering.jobs import PLATFORM, shared_workers, two_ranks

RDMA = {
    "metadata": {"annotations": {"k8s.v1.cni.cncf.io/networks": "rdma"}},
    "spec": {
        "hostNetwork": True,
        "nodeSelector": {"gpu": "h100"},
        "resourceClaims": [{"name": "nic", "resourceClaimTemplateName": "rdma"}],
        "initContainers": [{"name": "nccl-plugin", "image": "plugin:1", "restartPolicy": "Always"}],
        "containers": [
            {
                "name": "main",
                "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
                "env": [{"name": "NCCL_IB_HCA", "value": "mlx5"}],
                "resources": {"limits": {"nvidia.com/gpu": 2, "rdma/hca": 1}},
            }
        ],
    },
}
SPOT = {"spec": {"tolerations": [{"key": "spot", "operator": "Exists"}], "nodeSelector": {"gpu": "l4"}}}
WITH_PROFILES = replace(PLATFORM, profiles={"h100-rdma": RDMA, "spot": SPOT})


def running(job: dict[str, Any]) -> Cluster:
    cluster = Cluster(job, platform=WITH_PROFILES)
    cluster.start()
    assert cluster.phase == "Running", cluster.message
    return cluster


def spec_of(cluster: Cluster, process: str) -> dict[str, Any]:
    spec: dict[str, Any] = cluster.pods[cluster.name(process)]["spec"]
    return spec


def main_container(cluster: Cluster, process: str) -> dict[str, Any]:
    containers = spec_of(cluster, process)["containers"]
    container: dict[str, Any] = next(each for each in containers if each["name"] == "main")
    return container


def test_a_profile_is_merged_under_the_templates_of_the_job() -> None:
    job = two_ranks()
    job["spec"]["trainer"]["podTemplate"] = {
        "profile": "h100-rdma",
        "spec": {"containers": [{"name": "main", "env": [{"name": "NCCL_IB_HCA", "value": "mlx5_0"}]}]},
    }
    cluster = running(job)
    spec, container = spec_of(cluster, "trainer-0"), main_container(cluster, "trainer-0")
    assert spec["nodeSelector"] == {"gpu": "h100"}
    assert spec["resourceClaims"] == RDMA["spec"]["resourceClaims"]
    assert [each["name"] for each in spec["initContainers"]] == ["nccl-plugin"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    variables = {each["name"]: each.get("value") for each in container["env"]}
    assert variables["NCCL_IB_HCA"] == "mlx5_0"
    # Two GPUs in the profile's limits: both ranks share the pod.
    assert [each["name"] for each in cluster.settings("trainer-0")["companions"]] == ["trainer-1"]
    for control in ("prepare", "driver", "nats"):
        assert "nodeSelector" not in spec_of(cluster, control)


def test_the_profile_of_a_role_replaces_that_of_the_job() -> None:
    job = shared_workers()
    job["spec"]["podTemplate"] = {"profile": "spot"}
    job["spec"]["trainer"] = {"podTemplate": {"profile": "h100-rdma"}}
    job["spec"]["controlPods"] = {"driver": {"profile": "spot"}}
    cluster = running(job)
    assert spec_of(cluster, "trainer-0")["nodeSelector"] == {"gpu": "h100"}
    for process in ("rollout-0", "reward-exact-0", "driver"):
        assert spec_of(cluster, process)["nodeSelector"] == {"gpu": "l4"}
    for process in ("prepare", "nats"):
        assert "nodeSelector" not in spec_of(cluster, process)


def test_an_unknown_profile_is_an_error_with_the_known_ones() -> None:
    job = two_ranks()
    job["spec"]["trainer"]["podTemplate"] = {"profile": "h200"}
    cluster = Cluster(job, platform=WITH_PROFILES)
    cluster.settle()
    assert not cluster.made
    assert "spec.trainer.podTemplate.profile" in cluster.message
    assert "is no profile of this platform; it has h100-rdma, spot" in cluster.message


def test_a_profile_that_disappears_stops_no_running_pod() -> None:
    job = two_ranks()
    job["spec"]["trainer"]["podTemplate"] = {"profile": "spot"}
    cluster = running(job)
    pods = dict(cluster.pods)
    cluster.platform = PLATFORM
    cluster.settle()
    assert (cluster.phase, cluster.pods) == ("Running", pods)
    assert "it has none" in cluster.message
    # A pod without its profile would run on the wrong node.
    created = list(cluster.made)
    cluster.end(cluster.name("trainer-0"), 1, "lost")
    cluster.settle()
    assert cluster.made == created


def ports_of(cluster: Cluster, process: str) -> set[int]:
    return {port["containerPort"] for port in main_container(cluster, process)["ports"]}


@pytest.mark.parametrize("size", [1, 2])
def test_pods_on_the_network_of_their_node_share_no_port(size: int) -> None:
    job = shared_workers()
    job["spec"]["rollout"] |= {"processesPerPod": size}
    for section in ("trainer", "rollout"):
        job["spec"][section] = job["spec"].get(section, {}) | {"podTemplate": {"profile": "h100-rdma"}}
    cluster = running(job)
    pods = [name for name in cluster.short_names() if name.startswith(("trainer", "rollout"))]
    used = [port for process in pods for port in ports_of(cluster, process)]
    assert len(used) == len(set(used)) and all(20_000 <= port < 32_768 for port in used)
    trainer = cluster.settings("trainer-0")["ports"]
    assert ports_of(cluster, "trainer-0") == {trainer["grpc"], trainer["metrics"], trainer["health"]}
    assert spec_of(cluster, "trainer-0")["dnsPolicy"] == "ClusterFirstWithHostNet"
    probe = main_container(cluster, "trainer-0")["livenessProbe"]["httpGet"]
    assert probe == {"path": "/livez", "port": trainer["health"]}
    # Callers know the ports.
    assert cluster.settings("driver")["peers"]["trainer"].endswith(f":{trainer['grpc']}")
    worker = cluster.settings("rollout-1")
    assert worker["peers"]["trainer"].endswith(f":{trainer['grpc']}")
    assert worker["rendezvous"].endswith(f":{worker['ports']['rendezvous']}")
    assert "ports" not in json.loads(
        next(
            each["value"] for each in main_container(cluster, "driver")["env"] if each["name"] == ENV_SETTINGS
        )
    )


def test_scaling_changes_no_port() -> None:
    job = shared_workers()
    job["spec"]["rollout"]["podTemplate"] = {"profile": "h100-rdma"}
    cluster = running(job)
    before = {name: cluster.settings(name)["ports"] for name in ("rollout-0", "rollout-1")}
    cluster.job["spec"]["rollout"]["replicas"] = 3
    cluster.settle()
    cluster.end(cluster.name("rollout-0"), 1, "lost")
    cluster.settle()
    cluster.pass_time(100)
    cluster.settle()
    cluster.finish_leaving()
    cluster.settle()
    assert {name: cluster.settings(name)["ports"] for name in before} == before
