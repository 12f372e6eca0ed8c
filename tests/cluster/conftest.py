"""Two clusters, each made when a test first asks for it: one with simulated nodes, one with a real node."""

import uuid
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from cluster.support.behaviour import Behaviour, always
from cluster.support.cluster import Cluster
from cluster.support.cluster_jobs import make_claims
from cluster.support.control_plane import ControlPlane
from cluster.support.door import Door, define, defined
from cluster.support.failure_report import sections
from cluster.support.operator_process import OperatorProcess
from cluster.support.requirements import NodeImpossible
from cluster.support.simulated_kubelet import SimulatedKubelet
from cluster.support.team import Team
from cluster.support.volumes import delete_volumes


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test shows what its cluster has to say."""
    report = yield
    if report.failed and report.when == "call":
        report.sections.extend(sections(getattr(item, "funcargs", {})))
    return report


def _namespace(control_plane: ControlPlane) -> Iterator[str]:
    name = f"test-{uuid.uuid4().hex[:8]}"
    control_plane.kubectl.create_namespace(name)
    yield name
    # Kubernetes waits five seconds before it starts on this; nobody uses the name again.
    control_plane.kubectl("delete", "namespace", name, "--wait=false")
    delete_volumes(control_plane.api, name)


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A Kubernetes API with controllers and scheduler, without nodes. Needs no root."""
    with ControlPlane(tmp_path_factory.mktemp("control-plane")) as running:
        yield running


@pytest.fixture(scope="session")
def simulated(control_plane: ControlPlane) -> Iterator[SimulatedKubelet]:
    """Nodes of `control_plane` whose pods only say that they run. `behave` is put back after each test."""
    with control_plane.simulated_kubelet() as kubelet:
        yield kubelet


@pytest.fixture(autouse=True)
def _plain_behaviour(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "simulated" in request.fixturenames:
        request.getfixturevalue("simulated").behave = always(Behaviour())


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with one real node. Skips, and says why, where this machine cannot run one."""
    try:
        made = Cluster(tmp_path_factory.mktemp("cluster"))
    except NodeImpossible as reason:
        pytest.skip(str(reason))
    with made as running:
        yield running


@pytest.fixture
def cluster_namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace of its own in `cluster`, deleted afterwards with all that is in it, volumes too."""
    yield from _namespace(cluster.control_plane)


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    """A namespace of its own in `control_plane`, deleted afterwards with all that is in it."""
    yield from _namespace(control_plane)


@pytest.fixture(scope="module")
def known(control_plane: ControlPlane) -> Iterator[None]:
    """The resource, taken away after the module: Helm installs over none that it did not make."""
    with defined(control_plane):
        yield


@pytest.fixture
def door(control_plane: ControlPlane, known: None, namespace: str) -> Door:
    """Where jobs are handed in, in a namespace of their own."""
    return Door(control_plane.api, namespace)


@pytest.fixture
def team(control_plane: ControlPlane, simulated: SimulatedKubelet, namespace: str) -> Team:
    """A namespace of `control_plane` where jobs can run, in simulated pods."""
    define(control_plane)
    make_claims(control_plane, namespace)
    return Team(control_plane, namespace)


@pytest.fixture
def operator(team: Team, tmp_path: Path) -> Iterator[OperatorProcess]:
    """The operator of the team's namespace."""
    with OperatorProcess(tmp_path, team.control_plane.kubeconfig, team.namespace) as running:
        yield running
