"""The renewal of an active job's credentials: its pods end as in a suspension, and start with new ones."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from kubealign.spec.status import JobPhase
from kubealign_operator.planner.credentials import CredentialsDecision, has_secret, outdated_pods
from kubealign_operator.planner.document import DocumentDecision
from kubealign_operator.planner.plan import (
    PREPARED,
    READY,
    CredentialsRequest,
    Decision,
    PodDeletion,
    desired_condition,
)
from kubealign_operator.planner.pod_actions import delete_all_pods
from kubealign_operator.planner.readiness import refused_object_reason, removal_progress
from kubealign_operator.planner.snapshot import JobSnapshot

RENEWAL = "CredentialsRenewal"


def plan_renewal(
    snapshot: JobSnapshot,
    credentials: CredentialsDecision,
    request: CredentialsRequest | None,
    status_changes: Mapping[str, Any],
    *,
    prepared: bool,
    document: DocumentDecision,
    create: tuple[dict[str, Any], ...],
) -> Decision:
    """Decide on an active job with pods that mount earlier credentials.

    The pods stay until Secret and ConfigMap of the new generations exist: their creation may be refused. The
    driver is deleted first, since it needs the other pods to save a checkpoint. No restart is counted.

    Args:
        request: Request for the Secret of the new generation; None: it exists.
        status_changes: Status fields of an active job.
        prepared: True when the data are prepared: the pod that shows it is deleted too.
        document: The document that the successors of the pods mount.
        create: Its ConfigMap; empty: it exists.
    """
    outdated = outdated_pods(snapshot, credentials.status)
    refusal = refused_object_reason(snapshot)
    deletions: list[PodDeletion] = []
    requeue_at: list[datetime] = []
    phase = snapshot.previous_status.phase
    if has_secret(snapshot, credentials.status.generation) and not create:
        refusal, phase = None, JobPhase.STARTING
        deletions, requeue_at = delete_all_pods(snapshot, outdated)
        progress = removal_progress(snapshot)
    elif create:
        progress = f"waits for the ConfigMap {document.config_map}"
    else:
        progress = f"waits for the Secret {credentials.status.secret_name}"
    message = f"renewing credentials: {progress}" if refusal is None else refusal.message
    return Decision(
        JobPhase.RUNNING if phase is JobPhase.RUNNING else JobPhase.STARTING,
        message,
        conditions=(
            desired_condition(PREPARED, prepared, "Prepared" if prepared else "Preparing"),
            desired_condition(READY, False, RENEWAL if refusal is None else refusal.reason, message),
        ),
        status_changes=status_changes,
        credentials=request,
        delete=tuple(deletions),
        create=create,
        events=(*credentials.events, *document.events),
        requeue_at=tuple(requeue_at),
    )
