"""From a phase's decision to the answer: the whole status, the events, and when to look again."""

from datetime import datetime
from typing import Any

from kubealign.last_words import short
from kubealign.spec.status import AlignmentJobStatus, Condition, ConditionStatus, JobPhase
from kubealign_operator.render.decision import ACCEPTED, READY, Decision, Said
from kubealign_operator.render.look import Look
from kubealign_operator.render.past import condition_of
from kubealign_operator.render.rendered import Event, EventType, Rendered

_MESSAGE = 4000
#: Not so because of nothing that anybody need know of.
_QUIET = ("Starting", "Ended", "Suspending", "Suspended", "Ending", "Queued")


def assemble(look: Look, decision: Decision) -> Rendered:
    """A status that says what the old one said is equal to it: nothing is written for nothing."""
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
    wake = min((_until(at, look.now) for at in decision.wake), default=None)
    return Rendered(
        status=as_json(status),
        credentials=decision.credentials,
        delete=_once(decision),
        stop=decision.stop,
        create=decision.create,
        delete_job=decision.delete_job,
        events=(*_events(look, decision, message), *decision.events),
        again_after=wake,
    )


def as_json(status: AlignmentJobStatus) -> dict[str, Any]:
    """What it does not say is left out."""
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)


def _until(at: datetime, now: datetime) -> float:
    # A little later, so that it is over by then.
    return max(0.0, (at - now).total_seconds()) + 0.05


def _once(decision: Decision) -> tuple[Any, ...]:
    """The first deletion of each pod: the hardest comes first."""
    return tuple(
        {deletion.uid + "/" + deletion.name: deletion for deletion in reversed(decision.delete)}.values()
    )[::-1]


def _progress(look: Look) -> dict[str, Any]:
    progress = look.observed.progress
    if progress is None:
        return {}
    told = {
        "step": progress.step,
        "max_steps": progress.max_steps,
        "weight_version": progress.weight_version,
        "reward": _shown(progress.reward),
        "kl": _shown(progress.kl),
    }
    return {name: value for name, value in told.items() if value is not None}


def _shown(figure: float | None) -> float | None:
    """To four digits, for a column of a table. The run's metrics have all of them."""
    return None if figure is None else float(f"{figure:.4g}")


def _conditions(look: Look, decision: Decision) -> list[Condition]:
    new = {held.type: _condition(look, held) for held in decision.conditions}
    old = [held for held in look.past.conditions or [] if held.type not in new]
    order = [held.type for held in look.past.conditions or []]
    merged = {held.type: held for held in (*old, *new.values())}
    known = [merged[kind] for kind in dict.fromkeys(order)]
    return [*known, *(held for kind, held in new.items() if kind not in order)]


def _condition(look: Look, held: Said) -> Condition:
    before = condition_of(look.past, held.type)
    same = before is not None and before.status is held.status
    return Condition(
        type=held.type,
        status=held.status,
        reason=held.reason,
        message=short(held.message, _MESSAGE),
        last_transition_time=before.last_transition_time if same and before is not None else look.stamp,
        observed_generation=look.generation,
    )


def _events(look: Look, decision: Decision, message: str) -> list[Event]:
    found = []
    if decision.phase is not look.past.phase:
        kind = EventType.WARNING if decision.phase is JobPhase.FAILED else EventType.NORMAL
        found.append(Event(kind, decision.phase.value, message or f"the job is {decision.phase.value}"))
    for held in decision.conditions:
        before = condition_of(look.past, held.type)
        bad = held.status is ConditionStatus.FALSE and held.type in (ACCEPTED, READY)
        news = before is None or (before.reason, before.message) != (
            held.reason,
            short(held.message, _MESSAGE),
        )
        if bad and news and held.message and held.reason not in _QUIET:
            found.append(Event(EventType.WARNING, held.reason, held.message))
    return found
