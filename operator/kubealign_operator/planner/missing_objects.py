"""The objects of a job that do not exist yet, except pods."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from kubealign.process_settings import Role
from kubealign.roles import Process
from kubealign_operator import names
from kubealign_operator.manifests.config_map import config_map
from kubealign_operator.manifests.context import RenderContext
from kubealign_operator.manifests.disruption_budget import (
    budget_name,
    disruption_budget,
    disruption_budgets,
)
from kubealign_operator.manifests.egress import group_egress
from kubealign_operator.manifests.metadata import object_metadata
from kubealign_operator.manifests.network_policy import egress_policy, peers_policy
from kubealign_operator.manifests.service import service
from kubealign_operator.planner.plan import CredentialsRequest
from kubealign_operator.planner.snapshot import JobSnapshot


def missing_objects(snapshot: JobSnapshot, context: RenderContext) -> list[dict[str, Any]]:
    """Build the objects that do not exist; existing objects are never changed."""
    builders: dict[tuple[str, str], Callable[[RenderContext], dict[str, Any]]] = {
        ("Service", names.peers(context.name)): service,
        ("NetworkPolicy", names.peers(context.name)): peers_policy,
        ("ConfigMap", names.config_map(context.name, context.document_generation)): config_map,
    }
    builders |= {
        ("NetworkPolicy", names.egress(context.name, group)): partial(egress_policy, group=group, rules=rules)
        for group, rules in group_egress(context).items()
    }
    builders |= {
        ("PodDisruptionBudget", budget_name(context.name, budget)): partial(disruption_budget, budget=budget)
        for budget in disruption_budgets(context.job, snapshot.processes, context.document_generation)
    }
    return [build(context) for key, build in builders.items() if key not in snapshot.observed.objects]


def missing_document(snapshot: JobSnapshot, context: RenderContext) -> tuple[dict[str, Any], ...]:
    """Build the ConfigMap of the current document; empty: it exists."""
    name = names.config_map(context.name, context.document_generation)
    return () if ("ConfigMap", name) in snapshot.observed.objects else (config_map(context),)


def missing_credentials(
    snapshot: JobSnapshot, context: RenderContext, expires_at: datetime | None
) -> CredentialsRequest | None:
    """Return the request for the credentials Secret; None: it exists.

    Args:
        expires_at: Time until which the certificates must be valid; None: unknown, as the Secret exists.
    """
    name = names.credentials(context.name, context.credentials_generation)
    if expires_at is None or ("Secret", name) in snapshot.observed.objects:
        return None
    return credentials_request(context, snapshot.processes, expires_at - snapshot.now)


def credentials_request(
    context: RenderContext, processes: Sequence[Process], lifetime: timedelta
) -> CredentialsRequest:
    """Request credentials for every role in use and for the bus."""
    name = names.credentials(context.name, context.credentials_generation)
    return CredentialsRequest(
        name=name,
        generation=context.credentials_generation,
        roles=tuple(sorted({process.role for process in processes} | {Role.NATS})),
        hosts=(names.host(context.name, context.namespace, "*"), "localhost", "127.0.0.1"),
        lifetime=lifetime,
        metadata=object_metadata(context, name),
    )
