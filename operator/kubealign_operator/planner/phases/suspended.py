"""The Suspending and Suspended phases.

The driver is deleted first: it needs the other pods to save a checkpoint.
"""

from kubealign.spec.status import JobPhase, RoleStatus
from kubealign_operator.planner.credentials import renewal_without_pods, requested_renewal
from kubealign_operator.planner.plan import ACCEPTED, READY, SUSPENDED, Decision, desired_condition
from kubealign_operator.planner.pod_actions import delete_all_pods, delete_pods, force_overdue_deletions
from kubealign_operator.planner.previous_status import active_seconds
from kubealign_operator.planner.readiness import leftover_message, removal_progress
from kubealign_operator.planner.snapshot import JobSnapshot


def plan_suspending(snapshot: JobSnapshot) -> Decision:
    """Decide on a job that still has pods to stop."""
    deletions, requeue_at = delete_all_pods(snapshot)
    message = f"suspending: {removal_progress(snapshot)}"
    return Decision(
        JobPhase.SUSPENDING,
        message,
        conditions=(
            desired_condition(SUSPENDED, False, "Suspending", message),
            desired_condition(READY, False, "Suspending"),
        ),
        delete=tuple(deletions),
        requeue_at=tuple(requeue_at),
    )


def plan_suspended(snapshot: JobSnapshot) -> Decision:
    """Decide on a suspended job. A pod that appears is deleted."""
    at_step = "" if snapshot.step is None else f" at step {snapshot.step}"
    leftover = leftover_message(snapshot)
    message = f"suspended{at_step}; set spec.suspend to false to resume" + (leftover and f"; {leftover}")
    overdue, requeue_at = force_overdue_deletions(snapshot)
    # The password of Redis is revoked at once; the pods get the credentials of the resume.
    reason = requested_renewal(snapshot)
    renewal = renewal_without_pods(snapshot, reason) if reason else None
    active_time = active_seconds(snapshot.previous_status, snapshot.timestamp)
    roles = [
        RoleStatus(name=role.name, replicas=role.replicas, ready=0)
        for role in snapshot.previous_status.roles or []
    ]
    return Decision(
        JobPhase.SUSPENDED,
        message,
        conditions=(
            desired_condition(ACCEPTED, True, "Valid"),
            desired_condition(SUSPENDED, True, "Suspended", message),
            desired_condition(READY, False, "Suspended"),
        ),
        status_changes={
            "active_since": None,
            "starting_since": None,
            "active_seconds": active_time or None,
            "roles": roles or None,
            "rollout_replicas": None if snapshot.previous_status.rollout_replicas is None else 0,
            **({} if renewal is None else {"credentials": renewal.status}),
        },
        delete=(*overdue, *delete_pods(snapshot.pods)),
        events=() if renewal is None else renewal.events,
        requeue_at=tuple(requeue_at),
    )
