"""Clients without a platform, without a cluster, or with an unusual kubeconfig."""

import copy
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from cluster.support.client_errors import refused
from cluster.support.cluster_jobs import sft
from cluster.support.control_plane import ControlPlane
from cluster.support.door import undefine
from kubealign.client.backends.cluster.backend import ClusterBackend
from kubealign.client.backends.cluster.dashboard_discovery import open_telemetry
from kubealign.client.errors import NotPossible, Unavailable
from kubealign.client.records import JobRef, ListQuery
from kubealign.kube.api import KubernetesApi, connect


@pytest.fixture
async def api(control_plane: ControlPlane) -> AsyncIterator[KubernetesApi]:
    async with await connect(control_plane.kubeconfig) as new_api:
        yield new_api


async def test_a_cluster_without_kubealign_says_so(control_plane: ControlPlane, api: KubernetesApi) -> None:
    undefine(control_plane)
    site = ClusterBackend(api, open_telemetry(api), "default")
    for work in (site.get(JobRef("default", "x")), site.list(ListQuery("default")), site.create(sft("x"))):
        await refused(NotPossible, work, "not installed in this cluster", "helm install")


async def test_a_kubeconfig_is_read_as_kubectl_reads_it(
    control_plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = yaml.safe_load(control_plane.kubeconfig.read_text())
    config["contexts"][0]["context"]["namespace"] = "ours"
    other = copy.deepcopy(config["contexts"][0]) | {"name": "other"}
    del other["context"]["namespace"]
    config["contexts"].append(other)
    file = tmp_path / "config"
    file.write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(file))
    async with await connect() as api:
        assert api.namespace == "ours"
        assert json.dumps(await api.get("/version"))
    async with await connect(context="other") as api:
        assert api.namespace == "default"
    await refused(NotPossible, connect(context="third"), "no context third", "kubealign-test, other")
    await refused(Unavailable, connect(tmp_path / "none"), "there is no kubeconfig")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    await refused(Unavailable, connect(), "KUBECONFIG", "AlignmentClient.local()")
    for text in ("{", "- a", "a: b"):
        file.write_text(text)
        await refused(NotPossible, connect(file), str(file))
