"""The objects of a job other than its pods, and those of them that are missing."""

from typing import Any

from kubealign_operator import names
from kubealign_operator.planner.credentials import credentials_request
from kubealign_operator.manifests.config_map import config_map
from kubealign_operator.planner.snapshot import JobSnapshot
from kubealign_operator.manifests.network_policy import network_policy
from kubealign_operator.planner.plan import CredentialsRequest
from kubealign_operator.manifests.context import RenderContext
from kubealign_operator.manifests.service import service


def missing_objects(snapshot: JobSnapshot, context: RenderContext) -> list[dict[str, Any]]:
    """Build the objects that do not exist; existing objects are never changed."""
    builders = {
        ("Service", names.peers(context.name)): service,
        ("NetworkPolicy", names.peers(context.name)): network_policy,
        ("ConfigMap", names.config_map(context.name)): config_map,
    }
    return [build(context) for key, build in builders.items() if key not in snapshot.observed.objects]


def missing_credentials(snapshot: JobSnapshot, context: RenderContext) -> CredentialsRequest | None:
    """Return the request for the credentials Secret; None: it exists."""
    if ("Secret", names.credentials(context.name)) in snapshot.observed.objects:
        return None
    return credentials_request(context, snapshot.processes)
