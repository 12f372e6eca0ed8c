"""The enforced policies of the platform: operator, dashboard and Redis."""

from collections.abc import Iterable, Iterator, Mapping

import pytest

from cluster.support.cluster import Cluster
from cluster.support.helm import NAMESPACE, RELEASE
from cluster.support.kube_router import KubeRouter
from cluster.support.network_probes import Prober, Target, listening_pod, start_listeners
from cluster.support.policed_platform import Platform, pods_of_component

pytestmark = [pytest.mark.timeout(600), pytest.mark.full]

_COMPONENTS = ("operator", "dashboard", "redis")
_DASHBOARD_PORT, _REDIS_PORT, _METRICS_PORT, _HEALTH_PORT = 8443, 6379, 8080, 8081
_TEST_SECONDS = 120.0


@pytest.fixture
def neighbour(platform: Platform, cluster: Cluster) -> Iterator[Prober]:
    """Pod in the namespace of the platform that does not belong to it."""
    [pod] = start_listeners(cluster.kubectl, NAMESPACE, listening_pod("neighbour", cluster.node.name))
    yield pod
    cluster.kubectl("delete", "pod", pod.pod, "-n", NAMESPACE, "--timeout=60s", timeout=70)


@pytest.fixture
def pods(platform: Platform, cluster: Cluster) -> dict[str, list[Prober]]:
    """Pods of the platform, by component."""
    return {component: pods_of_component(cluster, component) for component in _COMPONENTS}


def listening(pods: Iterable[Prober]) -> set[Target]:
    """Return every port on which the pods listen."""
    return {target for pod in pods for target in pod.listening()}


def test_only_the_metrics_of_the_operator_are_open_to_every_pod(
    platform: Platform,
    pods: Mapping[str, list[Prober]],
    strangers: Mapping[str, Prober],
    neighbour: Prober,
    kube_router: KubeRouter,
) -> None:
    targets = {component: listening(members) for component, members in pods.items()}
    everything = {target for members in targets.values() for target in members}
    assert {target.port for target in targets["operator"]} == {_METRICS_PORT, _HEALTH_PORT}
    assert {target.port for target in targets["redis"]} == {_REDIS_PORT}
    assert _DASHBOARD_PORT in {target.port for target in targets["dashboard"]}
    metrics = {target for target in targets["operator"] if target.port == _METRICS_PORT}
    dashboard = {target for target in targets["dashboard"] if target.port == _DASHBOARD_PORT}

    for stranger in (strangers["teammate"], strangers["foreigner"], neighbour):
        assert stranger.reached(everything) == metrics, stranger.pod
    assert strangers["monitor"].reached(everything) == metrics | dashboard, "as dashboardFrom says"

    # Without its policies the chart leaves all ports open: the policies refused the connections.
    platform.upgrade(networkPolicy={**platform.values["networkPolicy"], "enabled": False})
    for stranger in (*strangers.values(), neighbour):
        kube_router.wait_until(
            lambda one=stranger: one.reached(everything) == everything, f"{stranger.pod} reaches {everything}"
        )
    platform.upgrade()
    for stranger in (strangers["teammate"], strangers["foreigner"], neighbour):
        kube_router.wait_until(
            lambda one=stranger: one.reached(everything) == metrics, f"{stranger.pod} is refused again"
        )


def test_the_platform_reaches_only_what_it_needs(
    pods: Mapping[str, list[Prober]],
    strangers: Mapping[str, Prober],
    cluster: Cluster,
    kube_router: KubeRouter,
) -> None:
    control_plane = cluster.control_plane
    api_server = Target("API server", control_plane.host, control_plane.port)
    [redis] = listening(pods["redis"])
    [foreigner] = strangers["foreigner"].listening()
    targets = {api_server, redis, foreigner}
    # A pod reaches itself, whatever its policy says.
    expected = {"operator": {api_server, redis}, "dashboard": {api_server, redis}, "redis": {redis}}
    for component, members in pods.items():
        for pod in members:
            assert pod.reached(targets) == expected[component], pod.pod
    with kube_router.everything_allowed(NAMESPACE, pods["redis"][0], foreigner):
        for members in pods.values():
            for pod in members:
                assert pod.reached(targets) == targets, pod.pod


def test_helm_test_passes(platform: Platform) -> None:
    waiting = ("--timeout", f"{_TEST_SECONDS:.0f}s")
    passed = platform.helm("test", RELEASE, "--namespace", NAMESPACE, *waiting, timeout=_TEST_SECONDS + 20)
    assert "Succeeded" in passed
