"""Helm installs this checkout's operator on a real node, `helm test` passes, and uninstall is complete."""

import time
from pathlib import Path

import pytest

from cluster.support.buildah import missing_for_builds
from cluster.support.cluster import Cluster
from cluster.support.helm import NAMESPACE, RELEASE
from cluster.support.platform import installed, platform_values
from cluster.support.programs import find

pytestmark = [
    pytest.mark.skipif(find("helm") is None, reason="helm is not built: `make cluster-tools`"),
    pytest.mark.skipif(
        bool(missing_for_builds()), reason=f"no images here: {', '.join(missing_for_builds())}"
    ),
    # Includes the build of the operator's image after a change of its sources.
    pytest.mark.timeout(900),
]

_TEST_SECONDS = 180.0
_LEADER_SECONDS = 60.0
_WIDE = ("get", "crds,clusterroles,clusterrolebindings", "-o", "name")
_OWN = (
    "get",
    "all,configmaps,secrets,leases,networkpolicies,poddisruptionbudgets",
    "-n",
    NAMESPACE,
    "-o",
    "name",
)


def figures(cluster: Cluster) -> list[dict[str, float]]:
    """Return the metrics without labels of each replica of the operator."""
    selector = "app.kubernetes.io/component=operator"
    pods = cluster.kubectl("get", "pods", "-n", NAMESPACE, "-l", selector, "-o", "name").split()
    pages = []
    for name in pods:
        proxy = f"/api/v1/namespaces/{NAMESPACE}/{name.replace('pod/', 'pods/')}:8080/proxy/metrics"
        lines = cluster.kubectl("get", "--raw", proxy).splitlines()
        plain = [line.split() for line in lines if line[:1] not in "#" and "{" not in line]
        pages.append({key: float(value) for key, value in plain})
    return pages


def one_leads_and_has_redis(cluster: Cluster) -> bool:
    leaders = [page for page in figures(cluster) if page["kubealign_operator_leader"] == 1]
    return len(leaders) == 1 and leaders[0]["kubealign_operator_redis_up"] == 1


@pytest.mark.parametrize("namespaced", [False, True], ids=["cluster-wide", "one-namespace"])
def test_the_platform_installs_works_and_uninstalls(
    cluster: Cluster, cluster_namespace: str, tmp_path: Path, namespaced: bool
) -> None:
    before = set(cluster.kubectl(*_WIDE).split())
    values = platform_values()
    if namespaced:
        values |= {"watchNamespaces": [cluster_namespace], "rbac": {"userRoles": False}}
    with installed(cluster, tmp_path / "helm", values) as helm:
        waiting = ("--timeout", f"{_TEST_SECONDS:.0f}s")
        passed = helm("test", RELEASE, "--namespace", NAMESPACE, *waiting, timeout=_TEST_SECONDS + 20)
        assert "Succeeded" in passed
        created = set(cluster.kubectl(*_WIDE).split()) - before
        assert len(created) == (2 if namespaced else 8), created
        deadline = time.monotonic() + _LEADER_SECONDS
        while not one_leads_and_has_redis(cluster):
            assert time.monotonic() < deadline, figures(cluster)
            time.sleep(0.5)
        helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--wait", timeout=_TEST_SECONDS)
        cluster.kubectl("wait", "pods", "--all", "-n", NAMESPACE, "--for=delete", "--timeout=60s", timeout=70)
        assert cluster.kubectl(*_OWN).split() == ["configmap/kube-root-ca.crt"]
        assert set(cluster.kubectl(*_WIDE).split()) == before
        assert not cluster.kubectl("get", "roles,rolebindings", "-n", cluster_namespace, "-o", "name")
