"""Certificates and passwords that a job needs."""

from collections.abc import Sequence
from datetime import timedelta

from kubealign.process import Role
from kubealign.roles import Process
from kubealign_operator.render import names
from kubealign_operator.render.metadata import object_metadata
from kubealign_operator.render.rendered import CredentialsNeed
from kubealign_operator.render.scene import Scene

_BEYOND_DEADLINE = timedelta(days=30)
_WITHOUT_DEADLINE = timedelta(days=3650)


def credentials(scene: Scene, processes: Sequence[Process]) -> CredentialsNeed:
    """Request credentials for every role in use and for the bus; they outlive the job's deadline."""
    deadline = scene.job.spec.lifecycle.active_deadline_seconds
    lifetime = _WITHOUT_DEADLINE
    if deadline is not None and deadline < _WITHOUT_DEADLINE.total_seconds():
        lifetime = timedelta(seconds=deadline) + _BEYOND_DEADLINE
    name = names.credentials(scene.name)
    return CredentialsNeed(
        name=name,
        roles=tuple(sorted({process.role for process in processes} | {Role.NATS})),
        hosts=(names.host(scene.name, scene.namespace, "*"), "localhost", "127.0.0.1"),
        lifetime=lifetime,
        metadata=object_metadata(scene, name),
    )
