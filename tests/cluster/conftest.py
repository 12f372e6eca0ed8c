"""Fixtures of two clusters, each started on first use: one with simulated nodes, one with a real node."""

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from cluster.support.behaviour import Behaviour, always
from cluster.support.cluster import Cluster
from cluster.support.cluster_jobs import make_claims
from cluster.support.control_plane import ControlPlane
from cluster.support.door import Door, define, delete_jobs
from cluster.support.failure_report import sections
from cluster.support.kube_namespaces import temporary_namespace
from cluster.support.operator_process import OperatorProcess
from cluster.support.requirements import NodeImpossible
from cluster.support.simulated_kubelet import SimulatedKubelet
from cluster.support.team import Team

#: Folders whose tests run in one worker, because they share processes -> name of what they share.
_SHARED = {
    "tests/cluster/jobs/": "node",
    "tests/cluster/node/": "node",
    "tests/cluster/network_policies/": "node",
    "tests/cluster/kueue/": "kueue",
}


class _ClusterScheduling(LoadFileScheduling):
    """Scheduling of parallel workers: the tests of the real node share one, and so do those of Kueue."""

    def _split_scope(self, nodeid: str) -> str:
        shared = next((name for folder, name in _SHARED.items() if nodeid.startswith(folder)), None)
        return shared or super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> _ClusterScheduling:
    """Return the scheduler of parallel workers."""
    return _ClusterScheduling(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--pod-minutes", type=float, default=3.0, help="duration of the random deletions of pods, in minutes"
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the state of its cluster to the report of a failed test."""
    report = yield
    if report.failed and report.when == "call":
        report.sections.extend(sections(getattr(item, "funcargs", {})))
    return report


@pytest.fixture
def pod_minutes(pytestconfig: pytest.Config) -> float:
    """Duration of the random deletions of pods, in minutes."""
    return float(pytestconfig.getoption("--pod-minutes"))


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Kubernetes API with controllers and scheduler, without nodes. Needs no root."""
    with ControlPlane(tmp_path_factory.mktemp("control-plane")) as running:
        yield running


@pytest.fixture(scope="session")
def simulated(control_plane: ControlPlane) -> Iterator[SimulatedKubelet]:
    """Simulated nodes of `control_plane`. `behave` is reset after each test."""
    with control_plane.simulated_kubelet() as kubelet:
        yield kubelet


@pytest.fixture(autouse=True)
def _plain_behaviour(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "simulated" in request.fixturenames:
        request.getfixturevalue("simulated").behave = always(Behaviour())


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Cluster with one real node. Skips with the reason where this machine cannot run one."""
    try:
        new_cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    except NodeImpossible as reason:
        pytest.skip(str(reason))
    with new_cluster as running:
        yield running


@pytest.fixture
def cluster_namespace(cluster: Cluster) -> Iterator[str]:
    """New namespace in `cluster`, deleted afterwards with its objects and volumes."""
    with temporary_namespace(cluster.control_plane) as name:
        yield name


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    """New namespace in `control_plane`, deleted afterwards with its objects and volumes."""
    with temporary_namespace(control_plane) as name:
        yield name


@pytest.fixture
def namespace_of_another_tenant(control_plane: ControlPlane) -> Iterator[str]:
    """Another new namespace in `control_plane`."""
    with temporary_namespace(control_plane) as name:
        yield name


@pytest.fixture(scope="module")
def known(control_plane: ControlPlane) -> Iterator[None]:
    """Custom resource definition, whose jobs are deleted after the module. The definition itself stays: the
    API server needs seconds for a new one."""
    define(control_plane)
    yield
    delete_jobs(control_plane)


@pytest.fixture
def door(control_plane: ControlPlane, known: None, namespace: str) -> Door:
    """Strictly validated access to the jobs of a new namespace."""
    return Door(control_plane.api, namespace)


@pytest.fixture
def team(control_plane: ControlPlane, simulated: SimulatedKubelet, namespace: str) -> Team:
    """Namespace of `control_plane` with claims, where jobs run in simulated pods."""
    define(control_plane)
    make_claims(control_plane, namespace)
    return Team(control_plane, namespace)


@pytest.fixture
def operator(team: Team, tmp_path: Path) -> Iterator[OperatorProcess]:
    """Operator of the team's namespace."""
    with OperatorProcess(tmp_path, team.control_plane.kubeconfig, team.namespace) as running:
        yield running
