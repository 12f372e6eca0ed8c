"""The end of a job, and the clean-up after it. A finished job never runs again."""

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
    """Decide that the job has succeeded."""
    claim_name, path = result_folder(job, look.uid)
    steps = "" if look.step is None else f" after step {look.step}"
    conditions = (
        said(COMPLETE, True, "Succeeded"),
        said(FAILED, False, "Succeeded"),
    )
    result = Result.model_construct(claim_name=claim_name, path=path)
    return _end(look, JobPhase.SUCCEEDED, f"succeeded{steps}", conditions, "Succeeded", result=result)


def failure(look: Look, cause: Cause) -> Decision:
    """Decide that the job has failed."""
    conditions = (
        said(COMPLETE, False, cause.reason),
        said(FAILED, True, cause.reason, cause.text),
    )
    return _end(look, JobPhase.FAILED, cause.text, conditions, cause.reason)


def ended(look: Look, phase: JobPhase) -> Decision:
    """Decide on a finished job: stop the remaining processes, keep their logs until the job is deleted."""
    completed = look.past.completion_time or look.stamp
    stop, deletions, requeue_at = _ends(look, completed, _reason(look))
    ttl = number(inside(look.observed.job, "spec", "lifecycle", "ttlSecondsAfterFinished"))
    is_expired = False
    if ttl is not None:
        try:
            expires_at = completed + timedelta(seconds=max(0.0, ttl))
        except OverflowError:
            expires_at = None
        if expires_at is not None:
            is_expired = expires_at <= look.now
            requeue_at = requeue_at if is_expired else [*requeue_at, expires_at]
    return Decision(
        phase,
        look.past.message or "",
        changes={
            "completion_time": completed,
            "roles": _roles(look),
            "rollout_replicas": _rollouts(look),
        },
        delete=tuple(deletions),
        stop=tuple(stop),
        delete_job=is_expired and not look.leaving,
        wake=tuple(requeue_at),
    )


def _end(
    snapshot: Look, phase: JobPhase, message: str, conditions: tuple[Said, ...], reason: str, **changes: Any
) -> Decision:
    stop, deletions, requeue_at = _ends(snapshot, snapshot.now, reason)
    suspended = () if condition_of(snapshot.past, SUSPENDED) is None else (said(SUSPENDED, False, reason),)
    return Decision(
        phase,
        message,
        conditions=(*conditions, *suspended, Said(READY, ConditionStatus.FALSE, "Ended")),
        changes={
            "completion_time": snapshot.stamp,
            "start_time": snapshot.past.start_time,
            "active_since": None,
            "active_seconds": active_seconds(snapshot.past, snapshot.stamp),
            "roles": _roles(snapshot),
            "rollout_replicas": _rollouts(snapshot),
            **changes,
        },
        delete=tuple(deletions),
        stop=tuple(stop),
        wake=tuple(requeue_at),
    )


def _ends(snapshot: Look, completed: datetime, reason: str) -> tuple[list[Stop], list[Deletion], list[datetime]]:
    overdue, requeue_at = give_up(snapshot.pods, snapshot.now)
    alive = [pod for pod in living(snapshot.pods) if not pod_state.leaving(pod)]
    driver = [pod for pod in living(snapshot.pods_of(names.DRIVER)) if pod_state.begun(pod)]
    if reason == DEADLINE and driver:
        # The driver stops first: it needs the other processes to save a checkpoint.
        driver_deadline = completed + timedelta(seconds=_grace(snapshot)) + _BEYOND_GRACE
        if snapshot.now < driver_deadline:
            alive, requeue_at = [pod for pod in alive if pod in driver], [*requeue_at, driver_deadline]
    stop = [
        Stop(pod.name, pod.uid)
        for pod in alive
        if pod_state.begun(pod) and (pod.active_deadline_seconds or math.inf) > 1
    ]
    never_started = delete(pod for pod in alive if not pod_state.begun(pod))
    return stop, [*overdue, *never_started], requeue_at


def _grace(snapshot: Look) -> float:
    seconds = number(inside(snapshot.observed.job, "spec", "lifecycle", "gracePeriodSeconds"))
    return min(seconds, 86_400.0) if seconds is not None and seconds > 0 else _GRACE_SECONDS


def _reason(snapshot: Look) -> str:
    condition = condition_of(snapshot.past, FAILED)
    return condition.reason if condition is not None and condition.status is ConditionStatus.TRUE else ""


def _roles(snapshot: Look) -> list[RoleStatus] | None:
    return [
        role.model_copy(update={"ready": sum(pod_state.ready(pod) for pod in snapshot.firsts_of(role.name))})
        for role in snapshot.past.roles or []
    ] or None


def _rollouts(snapshot: Look) -> int | None:
    if snapshot.past.rollout_replicas is None:
        return None
    return len(living(snapshot.firsts_of(generating(snapshot.processes))))
