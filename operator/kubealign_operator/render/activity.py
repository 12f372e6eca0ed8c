"""A job at work: Starting, until everything that the driver needs serves, then Running."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from kubealign.roles import PREPARE, generating
from kubealign.spec.job import AlignmentJob
from kubealign.spec.status import ConditionStatus, Dependency, JobPhase
from kubealign_operator.render import gates, names, pod_state
from kubealign_operator.render.causes import SLOW_AFTER, Cause
from kubealign_operator.render.decision import (
    ACCEPTED,
    DEPENDENCIES_READY,
    PREPARED,
    READY,
    SUSPENDED,
    Decision,
    Said,
    said,
)
from kubealign_operator.render.ending import DEADLINE, failure, success
from kubealign_operator.render.look import Look
from kubealign_operator.render.objects import missing_credentials, missing_objects
from kubealign_operator.render.past import active_seconds, condition_of
from kubealign_operator.render.pods import pod
from kubealign_operator.render.rendered import Event, EventType
from kubealign_operator.render.restarts import Judged, judge
from kubealign_operator.render.scene import Scene
from kubealign_operator.render.standing import awaited, obstacle, refused_objects, roles
from kubealign_operator.render.tending import tend
from kubealign_operator.render.units import Unit
from kubealign_operator.render.verdict import permanent_failure, succeeded


def active(look: Look, job: AlignmentJob, dependencies: Sequence[Dependency]) -> Decision:
    """What keeps it going, or its end."""
    if succeeded(look):
        return success(look, job)
    cause = permanent_failure(look) or _deadline(look, job)
    if cause is not None:
        return failure(look, cause)
    lifecycle = job.spec.lifecycle
    prepared = _was_prepared(look)
    units = look.units(look.past.attempts)
    prepared = prepared or gates.prepared_by(units)
    # What preparation left is in the run's folder: its pod is not needed again.
    tended = [unit for unit in units if not (prepared and unit.name == PREPARE)]
    judged = judge(tended, look.past.restarts or 0, lifecycle.max_restarts, _complete(look))
    if judged.failure is not None:
        return failure(look, judged.failure)
    running = look.past.phase is JobPhase.RUNNING or (prepared and gates.all_ready(judged.units, job))
    startable = frozenset(
        unit.name for unit in judged.units if gates.open_to(unit, judged.units, prepared, running)
    )
    work = tend(look, judged.units, startable)
    scene = Scene(look.name, look.namespace, look.uid, job, look.platform, tuple(dependencies))
    processes = look.processes
    pods = [pod(scene, member.process, processes, attempt) for member, attempt in work.create]
    problem = refused_objects(look) or obstacle(look, judged.units, judged.restarts, lifecycle.max_restarts)
    waits = awaited(judged.units, startable)
    phase = JobPhase.RUNNING if running else JobPhase.STARTING
    return Decision(
        phase,
        problem.text if problem is not None else waits or _doing(look, running),
        conditions=_conditions(look, problem, waits, prepared, running),
        changes={
            **_changes(look, judged),
            "dependencies": list(dependencies) or None,
            "roles": roles(_shown(units, judged.units), prepared),
            **_rollouts(look, job),
        },
        credentials=missing_credentials(look, scene),
        delete=tuple(work.delete),
        create=(*missing_objects(look, scene), *pods),
        events=tuple(
            Event(EventType.WARNING, "Restarted", held.told(judged.restarts, lifecycle.max_restarts))
            for held in judged.new
        ),
        wake=(*work.wake, *_deadline_at(look, job), *_slow_at(look)),
    )


def _was_prepared(look: Look) -> bool:
    held = condition_of(look.past, PREPARED)
    return look.past.phase is JobPhase.RUNNING or (held is not None and held.status is ConditionStatus.TRUE)


def _complete(look: Look) -> frozenset[str]:
    return frozenset(role.name for role in look.past.roles or [] if role.ready >= role.replicas > 0)


def _shown(units: Sequence[Unit], judged: Sequence[Unit]) -> list[Unit]:
    newest = {unit.name: unit for unit in judged}
    return [newest.get(unit.name, unit) for unit in units]


def _doing(look: Look, running: bool) -> str:
    progress = look.observed.progress
    if not running or progress is None or not progress.waiting_for:
        return ""
    return f"waits for {progress.waiting_for}"


def _conditions(
    look: Look, problem: Cause | None, waits: str, prepared: bool, running: bool
) -> tuple[Said, ...]:
    ready = said(READY, True, "AllReady")
    if problem is not None:
        ready = said(READY, False, problem.reason, problem.text)
    elif waits or not running:
        ready = said(READY, False, "Starting", waits)
    result = [
        said(ACCEPTED, True, "Valid"),
        said(DEPENDENCIES_READY, True, "Ready"),
        said(PREPARED, prepared, "Prepared" if prepared else "Preparing"),
        ready,
    ]
    if condition_of(look.past, SUSPENDED) is not None:
        result.append(said(SUSPENDED, False, "Resumed"))
    return tuple(result)


def _changes(look: Look, judged: Judged) -> Mapping[str, Any]:
    attempts = dict(look.past.attempts or {}) | {unit.name: unit.attempt for unit in judged.units}
    return {
        "start_time": look.past.start_time or look.stamp,
        "active_since": look.past.active_since or look.stamp,
        "restarts": judged.restarts,
        "attempts": {name: count for name, count in attempts.items() if count} or None,
    }


def _rollouts(look: Look, job: AlignmentJob) -> Mapping[str, Any]:
    if not job.spec.samples:
        return {}
    group = generating(look.processes)
    pods = [held for held in look.firsts_of(group) if not pod_state.leaving(held)]
    several = any(process.elastic and process.world_size > 1 for process in look.processes)
    selector = names.rollout_selector(look.uid, group, several=several)
    return {"rollout_replicas": len(pods), "selector": selector}


def _deadline(look: Look, job: AlignmentJob) -> Cause | None:
    seconds = job.spec.lifecycle.active_deadline_seconds
    if seconds is None or active_seconds(look.past, look.now) < seconds:
        return None
    return Cause(DEADLINE, f"the job has run for {seconds:g} s (lifecycle.activeDeadlineSeconds)")


def _deadline_at(look: Look, job: AlignmentJob) -> list[datetime]:
    seconds = job.spec.lifecycle.active_deadline_seconds
    if seconds is None:
        return []
    try:
        return [look.now + timedelta(seconds=seconds - active_seconds(look.past, look.now))]
    except OverflowError:
        return []


def _slow_at(look: Look) -> list[datetime]:
    """When a pod that has not begun will count as slow."""
    times = [
        held.created_at + SLOW_AFTER
        for held in look.pods
        if held.created_at is not None and pod_state.waiting(held) is not None
    ]
    return [at for at in times if at > look.now]
