"""Builds the plan from a phase's decision: the complete status, the events and the requeue time."""

from datetime import datetime
from typing import Any

from kubealign.last_words import short
from kubealign.spec.status import AlignmentJobStatus, Condition, ConditionStatus, JobPhase
from kubealign_operator.render.decision import ACCEPTED, READY, Decision, Said
from kubealign_operator.render.look import Look
from kubealign_operator.render.past import condition_of
from kubealign_operator.render.rendered import Event, EventType, Rendered

_MESSAGE = 4000
#: Reasons of a False condition that are no cause for a warning event.
_QUIET = ("Starting", "Ended", "Suspending", "Suspended", "Ending", "Queued")


def assemble(look: Look, decision: Decision) -> Rendered:
    """Build the plan. The status equals the previous one when nothing changed, so that no patch is sent."""
    message = short(decision.message, _MESSAGE)
    status = look.past.model_copy(
        update={
            **_progress(look),
            **decision.changes,
            "observed_generation": look.generation,
            "phase": decision.phase,
            "message": message or None,
            "conditions": _conditions(look, decision),
        }
    )
    requeue_after = min((_until(at, look.now) for at in decision.wake), default=None)
    return Rendered(
        status=as_json(status),
        credentials=decision.credentials,
        delete=_once(decision),
        stop=decision.stop,
        create=decision.create,
        delete_job=decision.delete_job,
        events=(*_events(look, decision, message), *decision.events),
        again_after=requeue_after,
    )


def as_json(status: AlignmentJobStatus) -> dict[str, Any]:
    """Return the status as JSON; unset fields are omitted."""
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)


def _until(at: datetime, now: datetime) -> float:
    # A margin, so that the deadline has passed by then.
    return max(0.0, (at - now).total_seconds()) + 0.05


def _once(decision: Decision) -> tuple[Any, ...]:
    """Return the first deletion of each pod: the most forceful one comes first."""
    return tuple(
        {deletion.uid + "/" + deletion.name: deletion for deletion in reversed(decision.delete)}.values()
    )[::-1]


def _progress(snapshot: Look) -> dict[str, Any]:
    progress = snapshot.observed.progress
    if progress is None:
        return {}
    fields = {
        "step": progress.step,
        "max_steps": progress.max_steps,
        "weight_version": progress.weight_version,
        "reward": _shown(progress.reward),
        "kl": _shown(progress.kl),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _shown(value: float | None) -> float | None:
    """Round a metric to four digits, for a table column. The run's metrics keep full precision."""
    return None if value is None else float(f"{value:.4g}")


def _conditions(snapshot: Look, decision: Decision) -> list[Condition]:
    new = {condition.type: _condition(snapshot, condition) for condition in decision.conditions}
    old = [condition for condition in snapshot.past.conditions or [] if condition.type not in new]
    order = [condition.type for condition in snapshot.past.conditions or []]
    merged = {condition.type: condition for condition in (*old, *new.values())}
    previous = [merged[condition_type] for condition_type in dict.fromkeys(order)]
    return [*previous, *(condition for condition_type, condition in new.items() if condition_type not in order)]


def _condition(snapshot: Look, condition: Said) -> Condition:
    before = condition_of(snapshot.past, condition.type)
    is_unchanged = before is not None and before.status is condition.status
    return Condition(
        type=condition.type,
        status=condition.status,
        reason=condition.reason,
        message=short(condition.message, _MESSAGE),
        last_transition_time=before.last_transition_time if is_unchanged and before is not None else snapshot.stamp,
        observed_generation=snapshot.generation,
    )


def _events(snapshot: Look, decision: Decision, message: str) -> list[Event]:
    events = []
    if decision.phase is not snapshot.past.phase:
        kind = EventType.WARNING if decision.phase is JobPhase.FAILED else EventType.NORMAL
        events.append(Event(kind, decision.phase.value, message or f"the job is {decision.phase.value}"))
    for condition in decision.conditions:
        before = condition_of(snapshot.past, condition.type)
        is_problem = condition.status is ConditionStatus.FALSE and condition.type in (ACCEPTED, READY)
        has_changed = before is None or (before.reason, before.message) != (
            condition.reason,
            short(condition.message, _MESSAGE),
        )
        if is_problem and has_changed and condition.message and condition.reason not in _QUIET:
            events.append(Event(EventType.WARNING, condition.reason, condition.message))
    return events
