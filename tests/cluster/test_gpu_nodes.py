"""The jobs of docs/gpu-nodes.md and all of their pods are accepted by the API server."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

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
    }
