"""Control plane of the Kueue tests, with simulated nodes and one manager, and queues for each test."""

from collections.abc import Iterator

import pytest

from cluster.support.behaviour import Behaviour, always
from cluster.support.control_plane import ControlPlane
from cluster.support.door import define
from cluster.support.kube_namespaces import temporary_namespace
from cluster.support.kueue import KueueManager, Queues
from cluster.support.programs import find
from cluster.support.simulated_kubelet import SimulatedKubelet

_NODES = 2
_GPUS = {"nvidia.com/gpu": "8"}


@pytest.fixture(scope="session")
def kueue_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Kubernetes API of the Kueue tests alone, with kubealign's custom resource definition."""
    if find("kueue") is None:
        pytest.skip("kueue is not built: `make cluster-tools`")
    with ControlPlane(tmp_path_factory.mktemp("kueue-plane")) as running:
        define(running)
        yield running


@pytest.fixture(scope="session")
def kueue_nodes(kueue_plane: ControlPlane) -> Iterator[SimulatedKubelet]:
    """Two simulated nodes with eight GPUs each. `behave` is reset after each test."""
    with kueue_plane.simulated_kubelet(nodes=_NODES, capacity=_GPUS) as kubelet:
        yield kubelet


@pytest.fixture(scope="session")
def kueue(kueue_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KueueManager]:
    """Kueue's manager, which a test may kill if it starts the manager again."""
    with KueueManager(kueue_plane, tmp_path_factory.mktemp("kueue")) as running:
        yield running


@pytest.fixture
def queues(kueue_plane: ControlPlane, kueue_nodes: SimulatedKubelet, kueue: KueueManager) -> Iterator[Queues]:
    """Queues and Workloads of a new namespace, deleted afterwards."""
    with temporary_namespace(kueue_plane) as namespace:
        queues = Queues(kueue_plane, namespace)
        yield queues
        queues.delete()
    kueue_nodes.behave = always(Behaviour())
