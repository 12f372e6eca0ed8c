"""Fixtures of a cluster of two nodes that enforces NetworkPolicies, and of the platform in it."""

from collections.abc import Iterator

import pytest

from cluster.support.buildah import missing_for_builds
from cluster.support.cluster import Cluster
from cluster.support.kube_namespaces import temporary_namespace
from cluster.support.kube_router import KubeRouter
from cluster.support.network_probes import Prober, listening_pod, start_listeners
from cluster.support.node import Node
from cluster.support.platform import installed
from cluster.support.policed_platform import Namespaces, Platform, policed_values
from cluster.support.programs import find
from cluster.support.requirements import NodeImpossible, missing_for_network_policies
from cluster.support.spread_jobs import JOBS_ONLY


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Cluster of this folder alone: the rules of kube-router would outlast it in another one."""
    lacking = [*missing_for_network_policies(), *missing_for_builds()]
    if find("helm") is None:
        lacking.append("helm (`make cluster-tools`)")
    if lacking:
        pytest.skip(f"NetworkPolicies are not enforced without {', '.join(lacking)}")
    try:
        new_cluster = Cluster(tmp_path_factory.mktemp("policed"))
    except NodeImpossible as reason:
        pytest.skip(str(reason))
    with new_cluster as running:
        yield running


@pytest.fixture(scope="package")
def second_node(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Second node of `cluster`, for the pods of jobs and of tests; those of the platform do not run there."""
    with cluster.further_node("real-1", tmp_path_factory.mktemp("real-1")) as node:
        cluster.kubectl("taint", "node", node.name, f"{JOBS_ONLY}=:NoSchedule")
        yield node


@pytest.fixture(scope="package")
def kube_router(cluster: Cluster, second_node: Node) -> Iterator[KubeRouter]:
    """Enforcement of all NetworkPolicies, on both nodes."""
    with KubeRouter(cluster, [cluster.node, second_node]) as running:
        yield running


@pytest.fixture(scope="package")
def namespaces(cluster: Cluster) -> Iterator[Namespaces]:
    """Namespaces of the tests, deleted with the objects in them."""
    plane = cluster.control_plane
    with (
        temporary_namespace(plane) as team,
        temporary_namespace(plane) as elsewhere,
        temporary_namespace(plane) as monitoring,
    ):
        yield Namespaces(team, elsewhere, monitoring)


@pytest.fixture(scope="package")
def platform(
    kube_router: KubeRouter,
    cluster: Cluster,
    second_node: Node,
    namespaces: Namespaces,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Platform]:
    """Platform, installed while policies are enforced."""
    values = policed_values(cluster, second_node, namespaces)
    with installed(cluster, tmp_path_factory.mktemp("helm"), values) as helm:
        yield Platform(helm, values)


@pytest.fixture(scope="package")
def strangers(
    kube_router: KubeRouter, cluster: Cluster, second_node: Node, namespaces: Namespaces
) -> dict[str, Prober]:
    """Pods that belong neither to a job nor to the platform, by their names."""
    first, second = cluster.node.name, second_node.name
    places = {"teammate": (namespaces.team, second), "foreigner": (namespaces.elsewhere, first)}
    places["monitor"] = (namespaces.monitoring, second)
    return {
        name: start_listeners(cluster.kubectl, namespace, listening_pod(name, node))[0]
        for name, (namespace, node) in places.items()
    }
