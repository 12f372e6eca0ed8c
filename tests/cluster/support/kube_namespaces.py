"""Kubernetes namespaces of single tests."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from .control_plane import ControlPlane
from .volumes import delete_volumes


@contextmanager
def temporary_namespace(control_plane: ControlPlane) -> Iterator[str]:
    """Create a namespace with a unique name, and delete it afterwards with its objects and volumes."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    control_plane.kubectl.create_namespace(name)
    yield name
    # Kubernetes starts the deletion after five seconds; no other test uses the name.
    control_plane.kubectl("delete", "namespace", name, "--wait=false")
    delete_volumes(control_plane.api, name)
