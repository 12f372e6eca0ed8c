"""Builds the plan from a phase's decision: the complete status, the events and the requeue time."""

from datetime import datetime
from typing import Any

from kubealign.spec.status import (
    AlignmentJobStatus,
    Condition,
    ConditionStatus,
    JobPhase,
    StartTurnStatus,
)
from kubealign.termination_message import truncate_middle
from kubealign_operator.planner.plan import (
    ACCEPTED,
    FAILED,
    READY,
    RECONCILING,
    STALLED,
    Decision,
    DesiredCondition,
    KubeEventType,
    PlannedEvent,
    PodDeletion,
    ReconcilePlan,
    desired_condition,
)
from kubealign_operator.planner.pod_events import pod_events
from kubealign_operator.planner.previous_status import condition_of
from kubealign_operator.planner.snapshot import JobSnapshot

_MAX_MESSAGE_LENGTH = 4000
_RECONCILING_PHASES = (JobPhase.PENDING, JobPhase.STARTING, JobPhase.SUSPENDING)
#: Reasons of a False condition that are no cause for a warning event.
_SILENT_REASONS = (
    "Starting",
    "Ended",
    "Suspending",
    "Suspended",
    "Ending",
    "Queued",
    "CredentialsRenewal",
    "WaitsForTurn",
)


def build_plan(snapshot: JobSnapshot, decision: Decision) -> ReconcilePlan:
    """Build the plan. The status equals the previous one when nothing changed, so that no patch is sent."""
    message = truncate_middle(decision.message, _MAX_MESSAGE_LENGTH)
    status = snapshot.previous_status.model_copy(
        update={
            **_progress(snapshot),
            **_ignored_retry(snapshot),
            "start_turn": _ended_turn(snapshot, decision.phase),
            **decision.status_changes,
            "observed_generation": snapshot.generation,
            "phase": decision.phase,
            "message": message or None,
            "conditions": _conditions(snapshot, decision),
        }
    )
    deletions = _unique_deletions(decision)
    requeue_after = min((_seconds_until(at, snapshot.now) for at in decision.requeue_at), default=None)
    return ReconcilePlan(
        status=status_json(status),
        credentials=decision.credentials,
        delete=deletions,
        stop=decision.stop,
        workload_changes=decision.workload_changes,
        create=decision.create,
        delete_job=decision.delete_job,
        events=(*_events(snapshot, decision, message), *decision.events),
        pod_events=pod_events(decision, deletions),
        requeue_after=requeue_after,
    )


def status_json(status: AlignmentJobStatus) -> dict[str, Any]:
    """Return the status as JSON; unset fields are omitted."""
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)


def _seconds_until(at: datetime, now: datetime) -> float:
    # A margin, so that the deadline has passed by then.
    return max(0.0, (at - now).total_seconds()) + 0.05


def _unique_deletions(decision: Decision) -> tuple[PodDeletion, ...]:
    """Return the first deletion of each pod: the most forceful one comes first."""
    return tuple(
        {deletion.uid + "/" + deletion.name: deletion for deletion in reversed(decision.delete)}.values()
    )[::-1]


def _progress(snapshot: JobSnapshot) -> dict[str, Any]:
    progress = snapshot.observed.progress
    if progress is None:
        return {}
    fields = {
        "step": progress.step,
        "max_steps": progress.max_steps,
        "weight_version": progress.weight_version,
        "reward": _round_metric(progress.reward),
        "kl": _round_metric(progress.kl),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _ignored_retry(snapshot: JobSnapshot) -> dict[str, Any]:
    """Record the retry annotation of a job that has not finished: only a failed job is retried."""
    phase = snapshot.previous_status.phase
    if not snapshot.retry_annotation or (phase is not None and phase.is_final):
        return {}
    return {"retry": snapshot.retry_annotation}


def _ended_turn(snapshot: JobSnapshot, phase: JobPhase) -> StartTurnStatus | None:
    """Return the turn to start that a job has completed, while its pods run; None: there is none.

    A phase that does not mention a turn gives it up: a job that cannot go on must not keep others waiting.
    """
    turn = snapshot.previous_status.start_turn
    has_ended = turn is not None and turn.ended_at is not None
    return turn if has_ended and phase in (JobPhase.STARTING, JobPhase.RUNNING) else None


def _round_metric(value: float | None) -> float | None:
    """Round a metric to four digits, for a table column. The run's metrics keep full precision."""
    return None if value is None else float(f"{value:.4g}")


def _conditions(snapshot: JobSnapshot, decision: Decision) -> list[Condition]:
    desired = (*decision.conditions, *_progress_conditions(snapshot, decision))
    new = {condition.type: _condition(snapshot, condition) for condition in desired}
    old = [condition for condition in snapshot.previous_status.conditions or [] if condition.type not in new]
    order = [condition.type for condition in snapshot.previous_status.conditions or []]
    merged = {condition.type: condition for condition in (*old, *new.values())}
    previous = [merged[condition_type] for condition_type in dict.fromkeys(order)]
    return [
        *previous,
        *(condition for condition_type, condition in new.items() if condition_type not in order),
    ]


def _progress_conditions(snapshot: JobSnapshot, decision: Decision) -> tuple[DesiredCondition, ...]:
    """Return Reconciling and Stalled, by which tools such as Flux and Helm know when to wait no longer.

    See https://github.com/kubernetes-sigs/cli-utils/blob/master/pkg/kstatus/README.md.
    """
    by_type = {condition.type: condition for condition in decision.conditions}
    cause: DesiredCondition | Condition | None = by_type.get(ACCEPTED)
    is_stalled = cause is not None and cause.status is ConditionStatus.FALSE
    if decision.phase is JobPhase.FAILED:
        is_stalled, cause = True, by_type.get(FAILED) or condition_of(snapshot.previous_status, FAILED)
    is_reconciling = not is_stalled and decision.phase in _RECONCILING_PHASES
    stalled_reason = cause.reason if is_stalled and cause is not None else decision.phase.value
    stalled_message = cause.message if is_stalled and cause is not None else ""
    return (
        desired_condition(RECONCILING, is_reconciling, decision.phase.value),
        desired_condition(STALLED, is_stalled, stalled_reason, stalled_message),
    )


def _condition(snapshot: JobSnapshot, condition: DesiredCondition) -> Condition:
    before = condition_of(snapshot.previous_status, condition.type)
    is_unchanged = before is not None and before.status is condition.status
    return Condition(
        type=condition.type,
        status=condition.status,
        reason=condition.reason,
        message=truncate_middle(condition.message, _MAX_MESSAGE_LENGTH),
        last_transition_time=before.last_transition_time
        if is_unchanged and before is not None
        else snapshot.timestamp,
        observed_generation=snapshot.generation,
    )


def _events(snapshot: JobSnapshot, decision: Decision, message: str) -> list[PlannedEvent]:
    events = []
    if decision.phase is not snapshot.previous_status.phase:
        kind = KubeEventType.WARNING if decision.phase is JobPhase.FAILED else KubeEventType.NORMAL
        events.append(
            PlannedEvent(kind, decision.phase.value, message or f"the job is {decision.phase.value}")
        )
    for condition in decision.conditions:
        before = condition_of(snapshot.previous_status, condition.type)
        is_problem = condition.status is ConditionStatus.FALSE and condition.type in (ACCEPTED, READY)
        has_changed = before is None or (before.reason, before.message) != (
            condition.reason,
            truncate_middle(condition.message, _MAX_MESSAGE_LENGTH),
        )
        if is_problem and has_changed and condition.message and condition.reason not in _SILENT_REASONS:
            events.append(PlannedEvent(KubeEventType.WARNING, condition.reason, condition.message))
    return events
