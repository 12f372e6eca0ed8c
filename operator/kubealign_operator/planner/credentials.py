"""Certificates and passwords that a job needs."""

from collections.abc import Sequence
from datetime import timedelta

from kubealign.process_settings import Role
from kubealign.roles import Process
from kubealign_operator import names
from kubealign_operator.manifests.metadata import object_metadata
from kubealign_operator.planner.plan import CredentialsRequest
from kubealign_operator.manifests.context import RenderContext

_AFTER_DEADLINE = timedelta(days=30)
_WITHOUT_DEADLINE = timedelta(days=3650)


def credentials_request(context: RenderContext, processes: Sequence[Process]) -> CredentialsRequest:
    """Request credentials for every role in use and for the bus; they outlive the job's deadline."""
    deadline = context.job.spec.lifecycle.active_deadline_seconds
    lifetime = _WITHOUT_DEADLINE
    if deadline is not None and deadline < _WITHOUT_DEADLINE.total_seconds():
        lifetime = timedelta(seconds=deadline) + _AFTER_DEADLINE
    name = names.credentials(context.name)
    return CredentialsRequest(
        name=name,
        roles=tuple(sorted({process.role for process in processes} | {Role.NATS})),
        hosts=(names.host(context.name, context.namespace, "*"), "localhost", "127.0.0.1"),
        lifetime=lifetime,
        metadata=object_metadata(context, name),
    )
