"""The Pending phase of a job that waits for its admission by Kueue: it has no pods."""

from collections.abc import Sequence

from kubealign.spec.status import DependencyResult, JobPhase, ResultLocation
from kubealign_operator.planner.admission.conditions import admission_conditions
from kubealign_operator.planner.admission.job_admission import JobAdmission
from kubealign_operator.planner.admission.workload_changes import request_admission
from kubealign_operator.planner.phases.suspended import stopped_status
from kubealign_operator.planner.plan import (
    ACCEPTED,
    DEPENDENCIES_READY,
    READY,
    SUSPENDED,
    Decision,
    DesiredCondition,
    desired_condition,
)
from kubealign_operator.planner.pod_actions import delete_pods, force_overdue_deletions
from kubealign_operator.planner.readiness import leftover_message
from kubealign_operator.planner.snapshot import JobSnapshot


def plan_queued(
    snapshot: JobSnapshot,
    admission: JobAdmission,
    dependencies: Sequence[DependencyResult],
    checkpoint_source: ResultLocation | None,
) -> Decision:
    """Decide on a job that Kueue has not admitted: ask for its quota, or return what was evicted.

    A pod that appears is deleted.

    Args:
        dependencies: Results of other jobs, recorded at the start since those jobs may be deleted.
    """
    actions = request_admission(snapshot, admission)
    leftover = leftover_message(snapshot)
    message = queued_message(snapshot, admission.obstacle) + (f"; {leftover}" if leftover else "")
    refusal = admission.mismatch or workload_refusal(snapshot, actions.create)
    overdue, requeue_at = force_overdue_deletions(snapshot)
    return Decision(
        JobPhase.PENDING,
        refusal or message,
        conditions=(
            desired_condition(ACCEPTED, True, "Valid"),
            desired_condition(DEPENDENCIES_READY, True, "Ready"),
            *queued_conditions(snapshot, admission, message, refusal),
        ),
        status_changes={
            **stopped_status(snapshot),
            "dependencies": list(dependencies) or None,
            "checkpoint_source": checkpoint_source,
        },
        delete=(*overdue, *delete_pods(snapshot.pods)),
        workload_changes=tuple(actions.changes),
        create=tuple(actions.create),
        requeue_at=tuple(requeue_at),
    )


def queued_message(snapshot: JobSnapshot, obstacle: str) -> str:
    """Return what a job waits for, after the step at which it was stopped."""
    at_step = "" if not snapshot.has_started or snapshot.step is None else f"at step {snapshot.step}, "
    return f"{at_step}{obstacle}"


def queued_conditions(
    snapshot: JobSnapshot, admission: JobAdmission, message: str, refusal: str
) -> tuple[DesiredCondition, ...]:
    """Return the conditions of a job that waits for Kueue, without those of its spec and dependencies.

    Args:
        refusal: Why the job cannot wait in its queue; empty: it can.
    """
    suspended = (
        (desired_condition(SUSPENDED, True, admission.reason, message),) if snapshot.has_started else ()
    )
    return (
        *admission_conditions(admission),
        *suspended,
        desired_condition(READY, False, "Refused" if refusal else "Queued", refusal or message),
    )


def workload_refusal(snapshot: JobSnapshot, create: Sequence[dict[str, object]]) -> str:
    """Return why a Workload could not be created; empty: nothing is known."""
    for manifest in create:
        name = str(manifest["metadata"]["name"])  # type: ignore[index]
        error = snapshot.observed.create_errors.get(name)
        if error is not None:
            return f"Workload {name} was refused: {error}"
    return ""
