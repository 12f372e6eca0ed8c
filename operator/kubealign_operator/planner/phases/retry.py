"""The retry of a failed job, requested by the annotation kubealign.dev/retry.

Each value of the annotation is acted on once: status.retry records it. A value that is set while the job
has not finished is recorded too, so that it does not retry a later failure.
"""

from kubealign.spec.job import AlignmentJob
from kubealign.spec.status import JobPhase
from kubealign_operator.planner.credentials import renewal_without_pods
from kubealign_operator.planner.phases.finished import deadline_failure, plan_finished
from kubealign_operator.planner.plan import (
    COMPLETE,
    FAILED,
    READY,
    Decision,
    KubeEventType,
    PlannedEvent,
    desired_condition,
)
from kubealign_operator.planner.pod_actions import delete_all_pods
from kubealign_operator.planner.readiness import removal_obstacle
from kubealign_operator.planner.snapshot import JobSnapshot

RETRIED = "Retried"
RETRY_REFUSED = "RetryRefused"


def requested_retry(snapshot: JobSnapshot) -> str:
    """Return the value of a retry that was not acted on yet; empty: none is requested."""
    value = snapshot.retry_annotation
    return "" if snapshot.is_deleting or value == snapshot.previous_status.retry else value


def plan_retry(snapshot: JobSnapshot, phase: JobPhase, job: AlignmentJob | None, error: str) -> Decision:
    """Decide on a requested retry of a finished job.

    The pods of the failed attempt are deleted first: a process that is still ending must not run beside its
    successor, and an exit code of the failed attempt must not fail the next one.

    Args:
        phase: Succeeded or Failed.
        job: None: the job cannot be read.
        error: Why the job is invalid; empty: it is valid.
    """
    refusal = _refusal(snapshot, phase, job, error)
    if refusal:
        return _plan_refusal(snapshot, phase, refusal)
    if snapshot.remaining_pods:
        return _plan_removal(snapshot)
    # A job that failed before its start, because of a dependency, waits for its dependencies again.
    next_phase = JobPhase.STARTING if snapshot.has_started else JobPhase.PENDING
    cause = snapshot.previous_status.message or "an unknown cause"
    at_step = "" if snapshot.step is None else f" from the last checkpoint before or at step {snapshot.step}"
    message = f"retried{at_step} after: {cause}"
    credentials = renewal_without_pods(snapshot, "the job is retried")
    return Decision(
        next_phase,
        "",
        conditions=(
            desired_condition(COMPLETE, False, RETRIED),
            desired_condition(FAILED, False, RETRIED, message),
            desired_condition(READY, False, "Starting"),
        ),
        status_changes={
            "completion_time": None,
            "restarts": 0,
            "attempts": None,
            "retry": requested_retry(snapshot),
            # Perhaps the platform was upgraded to mend what failed.
            "image": None,
            "credentials": None if credentials is None else credentials.status,
        },
        events=(
            PlannedEvent(KubeEventType.NORMAL, RETRIED, message),
            *(() if credentials is None else credentials.events),
        ),
        requeue_at=(snapshot.now,),
    )


def _refusal(snapshot: JobSnapshot, phase: JobPhase, job: AlignmentJob | None, error: str) -> str:
    """Return why the job cannot be retried; empty: it can."""
    if phase is JobPhase.SUCCEEDED:
        return "the job has succeeded: only a job that has failed can be retried"
    if job is None or error:
        return f"the job cannot be retried: {error}"
    deadline = deadline_failure(snapshot, job)
    if deadline is not None:
        return f"{deadline.message}, which a retry does not extend: raise or remove it, then retry again"
    return ""


def _plan_refusal(snapshot: JobSnapshot, phase: JobPhase, refusal: str) -> Decision:
    decision = plan_finished(snapshot, phase)
    changes = {**decision.status_changes, "retry": requested_retry(snapshot)}
    event = PlannedEvent(KubeEventType.WARNING, RETRY_REFUSED, refusal)
    return Decision(
        phase,
        decision.message,
        status_changes=changes,
        delete=decision.delete,
        pod_events=decision.pod_events,
        stop=decision.stop,
        workload_changes=decision.workload_changes,
        delete_job=decision.delete_job,
        events=(event,),
        requeue_at=decision.requeue_at,
    )


def _plan_removal(snapshot: JobSnapshot) -> Decision:
    """Decide on a job whose pods must be gone before it starts again. The driver is deleted first."""
    deletions, requeue_at = delete_all_pods(snapshot)
    return Decision(
        JobPhase.FAILED,
        snapshot.previous_status.message or "",
        conditions=(desired_condition(READY, False, "Ending", f"retry: {removal_obstacle(snapshot)}"),),
        delete=tuple(deletions),
        requeue_at=tuple(requeue_at),
    )
