"""Fixtures of the platform, installed once for this folder, and of a namespace for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.support.buildah import missing_for_builds
from cluster.support.cluster import Cluster
from cluster.support.helm import Helm
from cluster.support.platform import installed
from cluster.support.programs import find
from cluster.support.tenant import Tenant


@pytest.fixture(scope="package")
def platform(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Helm]:
    """Helm, with the release installed on the real node and uninstalled at the end."""
    if find("helm") is None:
        pytest.skip("helm is not built: `make cluster-tools`")
    if lacking := missing_for_builds():
        pytest.skip(f"no images here: {', '.join(lacking)}")
    with installed(cluster, tmp_path_factory.mktemp("helm")) as helm:
        yield helm


@pytest.fixture
def tenant(platform: Helm, cluster: Cluster, cluster_namespace: str, tmp_path: Path) -> Iterator[Tenant]:
    """Namespace with a volume. All jobs are deleted at the end, because their pods would keep the volume."""
    new_tenant = Tenant(cluster, cluster_namespace, tmp_path / "volume")
    yield new_tenant
    new_tenant.kubectl("delete", "alignmentjobs", "--all", "--timeout=60s", timeout=70)
    new_tenant.until(lambda: not new_tenant.left("pods"), "the pods to go with their jobs")
