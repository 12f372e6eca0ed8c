"""A complete cluster on this machine: a control plane and a real node, to which a test may add another."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from .control_plane import ControlPlane
from .kubectl import Kubectl
from .namespaces import NodeNamespaces
from .node import Node
from .requirements import require_node
from .volumes import delete_volumes, volume


class Cluster:
    """A context manager; needs root, containerd, runc, the CNI plugins and iptables.

    Raises NodeImpossible, which names what is missing, before anything is started."""

    def __init__(self, folder: Path, *, restart_seconds: int = 2) -> None:
        require_node()
        self.folder = folder
        self._restart_seconds = restart_seconds
        self._parts = ExitStack()
        self._control_plane: ControlPlane | None = None
        self._node: Node | None = None

    @property
    def control_plane(self) -> ControlPlane:
        assert self._control_plane is not None, "used outside `with`"
        return self._control_plane

    @property
    def node(self) -> Node:
        assert self._node is not None, "used outside `with`"
        return self._node

    @property
    def kubectl(self) -> Kubectl:
        return self.control_plane.kubectl

    def __enter__(self) -> Self:
        try:
            spaces = NodeNamespaces(self.folder / "node")
            self._parts.callback(spaces.close)
            spaces.open()
            # The node and its pods reach the API server over their link to this machine; nobody else does.
            addresses = spaces.addresses
            self._control_plane = self._parts.enter_context(
                ControlPlane(
                    self.folder / "control-plane", host=addresses.machine, service_range=addresses.services
                )
            )
            self._node = self._parts.enter_context(
                Node(self.folder / "node", spaces, self.control_plane, restart_seconds=self._restart_seconds)
            )
        except BaseException:
            self._parts.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._parts.close()

    @contextmanager
    def further_node(self, name: str, folder: Path) -> Iterator[Node]:
        """Add another node, which is removed with its Node object at the end.

        Its pods and those of the first node reach each other, and both mount the same folders of this
        machine. It has the images of a new node only."""
        spaces = NodeNamespaces(folder)
        try:
            spaces.open()
            with Node(
                folder,
                spaces,
                self.control_plane,
                name=name,
                restart_seconds=self._restart_seconds,
                joins=self.node,
            ) as node:
                yield node
        finally:
            spaces.close()
            self.kubectl("delete", "node", name, "--ignore-not-found", "--timeout=30s")

    def import_image(self, archive: Path) -> None:
        """Import an image into the first node; see Node.import_image."""
        self.node.import_image(archive)

    def volume(self, claim: str, namespace: str, path: Path) -> None:
        """Make a claim in `namespace` for a folder of this machine; see volumes.volume."""
        volume(self.control_plane.api, self.kubectl, claim, namespace, path)

    def delete_volumes(self, namespace: str) -> None:
        """Delete the volumes of a namespace; the folders stay."""
        delete_volumes(self.control_plane.api, namespace)
