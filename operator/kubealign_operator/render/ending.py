"""The end of a job, and what remains to be done after it. A job that has ended never runs again."""

import math
from datetime import datetime, timedelta
from typing import Any

from kubealign.roles import generating
from kubealign.spec.job import AlignmentJob
from kubealign.spec.status import ConditionStatus, JobPhase, Result, RoleStatus
from kubealign_operator.render import names, pod_state
from kubealign_operator.render.causes import Cause
from kubealign_operator.render.claims import result_folder
from kubealign_operator.render.decision import COMPLETE, FAILED, READY, SUSPENDED, Decision, Said, said
from kubealign_operator.render.look import Look, living
from kubealign_operator.render.past import active_seconds, condition_of
from kubealign_operator.render.reading import inside, number
from kubealign_operator.render.removal import delete, give_up
from kubealign_operator.render.rendered import Deletion, Stop

DEADLINE = "DeadlineExceeded"
_GRACE_SECONDS = 30.0
_BEYOND_GRACE = timedelta(seconds=30)


def success(look: Look, job: AlignmentJob) -> Decision:
    """The job has done its work."""
    claim_name, path = result_folder(job, look.uid)
    steps = "" if look.step is None else f" after step {look.step}"
    conditions = (
        said(COMPLETE, True, "Succeeded"),
        said(FAILED, False, "Succeeded"),
    )
    result = Result.model_construct(claim_name=claim_name, path=path)
    return _end(look, JobPhase.SUCCEEDED, f"succeeded{steps}", conditions, "Succeeded", result=result)


def failure(look: Look, cause: Cause) -> Decision:
    """The job cannot go on."""
    conditions = (
        said(COMPLETE, False, cause.reason),
        said(FAILED, True, cause.reason, cause.text),
    )
    return _end(look, JobPhase.FAILED, cause.text, conditions, cause.reason)


def ended(look: Look, phase: JobPhase) -> Decision:
    """After the end: the pods' processes are ended, their logs kept until the job is deleted."""
    completed = look.past.completion_time or look.stamp
    stop, remove, wake = _ends(look, completed, _reason(look))
    ttl = number(inside(look.observed.job, "spec", "lifecycle", "ttlSecondsAfterFinished"))
    over = False
    if ttl is not None:
        try:
            deletion = completed + timedelta(seconds=max(0.0, ttl))
        except OverflowError:
            deletion = None
        if deletion is not None:
            over = deletion <= look.now
            wake = wake if over else [*wake, deletion]
    return Decision(
        phase,
        look.past.message or "",
        changes={
            "completion_time": completed,
            "roles": _roles(look),
            "rollout_replicas": _rollouts(look),
        },
        delete=tuple(remove),
        stop=tuple(stop),
        delete_job=over and not look.leaving,
        wake=tuple(wake),
    )


def _end(
    look: Look, phase: JobPhase, message: str, conditions: tuple[Said, ...], reason: str, **changes: Any
) -> Decision:
    stop, remove, wake = _ends(look, look.now, reason)
    known = () if condition_of(look.past, SUSPENDED) is None else (said(SUSPENDED, False, reason),)
    return Decision(
        phase,
        message,
        conditions=(*conditions, *known, Said(READY, ConditionStatus.FALSE, "Ended")),
        changes={
            "completion_time": look.stamp,
            "start_time": look.past.start_time,
            "active_since": None,
            "active_seconds": active_seconds(look.past, look.stamp),
            "roles": _roles(look),
            "rollout_replicas": _rollouts(look),
            **changes,
        },
        delete=tuple(remove),
        stop=tuple(stop),
        wake=tuple(wake),
    )


def _ends(look: Look, completed: datetime, reason: str) -> tuple[list[Stop], list[Deletion], list[datetime]]:
    overdue, wake = give_up(look.pods, look.now)
    alive = [pod for pod in living(look.pods) if not pod_state.leaving(pod)]
    driver = [pod for pod in living(look.pods_of(names.DRIVER)) if pod_state.begun(pod)]
    if reason == DEADLINE and driver:
        # The driver first: it needs the others to commit.
        last = completed + timedelta(seconds=_grace(look)) + _BEYOND_GRACE
        if look.now < last:
            alive, wake = [pod for pod in alive if pod in driver], [*wake, last]
    stop = [
        Stop(pod.name, pod.uid)
        for pod in alive
        if pod_state.begun(pod) and (pod.active_deadline_seconds or math.inf) > 1
    ]
    unborn = delete(pod for pod in alive if not pod_state.begun(pod))
    return stop, [*overdue, *unborn], wake


def _grace(look: Look) -> float:
    held = number(inside(look.observed.job, "spec", "lifecycle", "gracePeriodSeconds"))
    return min(held, 86_400.0) if held is not None and held > 0 else _GRACE_SECONDS


def _reason(look: Look) -> str:
    held = condition_of(look.past, FAILED)
    return held.reason if held is not None and held.status is ConditionStatus.TRUE else ""


def _roles(look: Look) -> list[RoleStatus] | None:
    return [
        role.model_copy(update={"ready": sum(pod_state.ready(pod) for pod in look.firsts_of(role.name))})
        for role in look.past.roles or []
    ] or None


def _rollouts(look: Look) -> int | None:
    if look.past.rollout_replicas is None:
        return None
    return len(living(look.firsts_of(generating(look.processes))))
