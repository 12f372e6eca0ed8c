"""The jobs of docs/gpu-nodes.md and all of their pods are accepted by the API server."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from kubernetes import client

from cluster.support.control_plane import ControlPlane
from cluster.support.door import Door
from kubealign_operator.manifests.context import Platform
from support.doc_blocks import ROOT, blocks
from support.rendering.cluster import Cluster

PAGE = ROOT / "docs" / "gpu-nodes.md"
JOBS = {block.line: yaml.safe_load(block.text) for block in blocks(PAGE, "yaml") if not block.mark}


@pytest.fixture(scope="module")
def platform() -> Platform:
    """Settings of a chart with the profiles of the page."""
    (values,) = (block.text for block in blocks(PAGE, "yaml") if block.mark)
    profiles = yaml.safe_load(values)["jobs"]["profiles"]
    templates: Mapping[str, Any] = {name: profile["podTemplate"] for name, profile in profiles.items()}
    return Platform(image="kubealign/services:1", redis_host="redis", profiles=templates)


@pytest.mark.parametrize("job", JOBS.values(), ids=lambda job: job["metadata"]["name"])
def test_job_and_pods_are_admitted(
    job: dict[str, Any], door: Door, control_plane: ControlPlane, platform: Platform, namespace: str
) -> None:
    stored = door.create(job)
    cluster = Cluster(stored, platform=platform)
    cluster.start()
    assert cluster.phase == "Running", cluster.message
    items = [_manifest(pod) for pod in cluster.pods.values()]
    answer = control_plane.kubectl(
        "create", "--dry-run=server", "--validate=strict", "-n", namespace, "-o", "name", "-f", "-",
        stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}),
    )  # fmt: skip
    assert sorted(answer.split()) == sorted(f"pod/{name}" for name in cluster.pods)


def test_volumes_of_the_nodes_pass_the_restricted_standard(
    door: Door, control_plane: ControlPlane, namespace: str
) -> None:
    """Inline CSI volumes and images reach every pod, and Pod Security restricted admits them.

    Kubernetes before 1.35 has its feature gate for images off, and drops them.
    """
    has_images = int(client.VersionApi(control_plane.api).get_code().minor) >= 35
    control_plane.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    job = next(job for job in JOBS.values() if job["metadata"]["name"] == "node-volumes")
    cluster = Cluster(door.create(job), platform=Platform(image="kubealign/services:1", redis_host="redis"))
    cluster.start()
    for pod in cluster.pods.values():
        stored = json.loads(
            control_plane.kubectl(
                "create", "--dry-run=server", "--validate=strict", "-n", namespace, "-o", "json", "-f", "-",
                stdin=json.dumps(_manifest(pod)),
            )
        )  # fmt: skip
        volumes = {volume["name"]: volume for volume in stored["spec"]["volumes"]}
        assert ("base" in volumes) == has_images
        if has_images:
            assert volumes["base"]["image"]["reference"] == "registry.example/models/qwen3-8b:1"
        assert volumes["cache"]["csi"]["volumeAttributes"] == {"bucket": "prompts"}


def _manifest(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pod as the operator creates it, without what the simulation adds."""
    metadata = {
        key: pod["metadata"][key] for key in ("name", "labels", "annotations") if key in pod["metadata"]
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod["spec"]}


def test_the_layouts_are_those_that_the_page_describes(platform: Platform) -> None:
    counts = {}
    for job in JOBS.values():
        cluster = Cluster(
            job | {"metadata": {**job["metadata"], "uid": "u", "namespace": "team"}}, platform=platform
        )
        cluster.start()
        names = cluster.short_names()
        counts[job["metadata"]["name"]] = (
            [name for name in names if name.startswith("trainer")],
            sum(name.startswith("rollout") for name in names),
        )
    assert counts == {
        "one-node": (["trainer-0"], 4),
        "two-nodes": (["trainer-0", "trainer-8"], 4),
        "slices": (["trainer-0"], 1),
        "spot": (["trainer-0"], 16),
        "node-volumes": (["trainer-0"], 1),
    }
