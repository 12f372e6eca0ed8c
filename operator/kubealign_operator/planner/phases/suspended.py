"""The Suspending and Suspended phases.

The driver is deleted first: it needs the other pods to save a checkpoint.
"""

from typing import Any

from kubealign.spec.status import JobPhase, RoleStatus
from kubealign_operator.planner.admission.conditions import admission_conditions
from kubealign_operator.planner.admission.job_admission import JobAdmission
from kubealign_operator.planner.admission.workload_changes import delete_workloads
from kubealign_operator.planner.credentials import renewal_without_pods, requested_renewal
from kubealign_operator.planner.plan import (
    ACCEPTED,
    ADMITTED,
    READY,
    SUSPENDED,
    Decision,
    DesiredCondition,
    desired_condition,
)
from kubealign_operator.planner.pod_actions import delete_all_pods, delete_pods, force_overdue_deletions
from kubealign_operator.planner.previous_status import active_seconds, condition_of
from kubealign_operator.planner.readiness import leftover_message, removal_progress
from kubealign_operator.planner.snapshot import JobSnapshot


def plan_suspending(snapshot: JobSnapshot, admission: JobAdmission | None, cause: str = "") -> Decision:
    """Decide on a job that still has pods to stop.

    Args:
        cause: Reason why Kueue stops the job; empty: it is suspended by its spec.
    """
    deletions, requeue_at = delete_all_pods(snapshot)
    message = f"{cause or 'suspending'}: {removal_progress(snapshot)}"
    return Decision(
        JobPhase.SUSPENDING,
        message,
        conditions=(
            desired_condition(SUSPENDED, False, "Suspending", message),
            desired_condition(READY, False, "Suspending"),
            *admission_conditions(admission),
        ),
        delete=tuple(deletions),
        requeue_at=tuple(requeue_at),
    )


def plan_suspended(snapshot: JobSnapshot) -> Decision:
    """Decide on a suspended job. A pod that appears is deleted."""
    at_step = "" if snapshot.step is None else f" at step {snapshot.step}"
    leftover = leftover_message(snapshot)
    message = f"suspended{at_step}; set spec.suspend to false to resume" + (leftover and f"; {leftover}")
    if snapshot.prebuilt_workload:
        message += "; its quota stays reserved: suspend the job in the cluster from which it came instead"
    overdue, requeue_at = force_overdue_deletions(snapshot)
    # The password of Redis is revoked at once; the pods get the credentials of the resume.
    reason = requested_renewal(snapshot)
    renewal = renewal_without_pods(snapshot, reason) if reason else None
    return Decision(
        JobPhase.SUSPENDED,
        message,
        conditions=(
            desired_condition(ACCEPTED, True, "Valid"),
            desired_condition(SUSPENDED, True, "Suspended", message),
            desired_condition(READY, False, "Suspended"),
            *_withdrawn_condition(snapshot),
        ),
        status_changes={
            **stopped_status(snapshot),
            **({} if renewal is None else {"credentials": renewal.status}),
        },
        delete=(*overdue, *delete_pods(snapshot.pods)),
        workload_changes=tuple(delete_workloads(snapshot)),
        events=() if renewal is None else renewal.events,
        requeue_at=tuple(requeue_at),
    )


def stopped_status(snapshot: JobSnapshot) -> dict[str, Any]:
    """Return the status fields of a job that has no pods for now."""
    previous = snapshot.previous_status
    roles = [RoleStatus(name=role.name, replicas=role.replicas, ready=0) for role in previous.roles or []]
    return {
        "active_since": None,
        "starting_since": None,
        "active_seconds": active_seconds(previous, snapshot.timestamp) or None,
        "roles": roles or None,
        "rollout_replicas": None if previous.rollout_replicas is None else 0,
    }


def _withdrawn_condition(snapshot: JobSnapshot) -> tuple[DesiredCondition, ...]:
    if condition_of(snapshot.previous_status, ADMITTED) is None:
        return ()
    return (desired_condition(ADMITTED, False, "Suspended"),)
