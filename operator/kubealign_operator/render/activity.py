"""The Starting and Running phases: Running begins once everything that the driver needs is ready."""

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
    """Decide how to keep an active job going, or to end it."""
    if succeeded(look):
        return success(look, job)
    failure_reason = permanent_failure(look) or _deadline(look, job)
    if failure_reason is not None:
        return failure(look, failure_reason)
    lifecycle = job.spec.lifecycle
    prepared = _was_prepared(look)
    units = look.units(look.past.attempts)
    prepared = prepared or gates.prepared_by(units)
    # The output of preparation is in the run directory: its pod is not needed again.
    managed = [unit for unit in units if not (prepared and unit.name == PREPARE)]
    outcome = judge(managed, look.past.restarts or 0, lifecycle.max_restarts, _complete(look))
    if outcome.failure is not None:
        return failure(look, outcome.failure)
    running = look.past.phase is JobPhase.RUNNING or (prepared and gates.all_ready(outcome.units, job))
    startable = frozenset(
        unit.name for unit in outcome.units if gates.open_to(unit, outcome.units, prepared, running)
    )
    actions = tend(look, outcome.units, startable)
    context = Scene(look.name, look.namespace, look.uid, job, look.platform, tuple(dependencies))
    processes = look.processes
    pods = [pod(context, member.process, processes, attempt) for member, attempt in actions.create]
    problem = refused_objects(look) or obstacle(look, outcome.units, outcome.restarts, lifecycle.max_restarts)
    pending = awaited(outcome.units, startable)
    phase = JobPhase.RUNNING if running else JobPhase.STARTING
    return Decision(
        phase,
        problem.text if problem is not None else pending or _doing(look, running),
        conditions=_conditions(look, problem, pending, prepared, running),
        changes={
            **_changes(look, outcome),
            "dependencies": list(dependencies) or None,
            "roles": roles(_shown(units, outcome.units), prepared),
            **_rollouts(look, job),
        },
        credentials=missing_credentials(look, context),
        delete=tuple(actions.delete),
        create=(*missing_objects(look, context), *pods),
        events=tuple(
            Event(EventType.WARNING, "Restarted", restart.told(outcome.restarts, lifecycle.max_restarts))
            for restart in outcome.new
        ),
        wake=(*actions.wake, *_deadline_at(look, job), *_slow_at(look)),
    )


def _was_prepared(snapshot: Look) -> bool:
    condition = condition_of(snapshot.past, PREPARED)
    return snapshot.past.phase is JobPhase.RUNNING or (condition is not None and condition.status is ConditionStatus.TRUE)


def _complete(snapshot: Look) -> frozenset[str]:
    return frozenset(role.name for role in snapshot.past.roles or [] if role.ready >= role.replicas > 0)


def _shown(units: Sequence[Unit], judged_units: Sequence[Unit]) -> list[Unit]:
    newest = {unit.name: unit for unit in judged_units}
    return [newest.get(unit.name, unit) for unit in units]


def _doing(snapshot: Look, running: bool) -> str:
    progress = snapshot.observed.progress
    if not running or progress is None or not progress.waiting_for:
        return ""
    return f"waits for {progress.waiting_for}"


def _conditions(
    snapshot: Look, problem: Cause | None, pending: str, prepared: bool, running: bool
) -> tuple[Said, ...]:
    ready = said(READY, True, "AllReady")
    if problem is not None:
        ready = said(READY, False, problem.reason, problem.text)
    elif pending or not running:
        ready = said(READY, False, "Starting", pending)
    result = [
        said(ACCEPTED, True, "Valid"),
        said(DEPENDENCIES_READY, True, "Ready"),
        said(PREPARED, prepared, "Prepared" if prepared else "Preparing"),
        ready,
    ]
    if condition_of(snapshot.past, SUSPENDED) is not None:
        result.append(said(SUSPENDED, False, "Resumed"))
    return tuple(result)


def _changes(snapshot: Look, outcome: Judged) -> Mapping[str, Any]:
    attempts = dict(snapshot.past.attempts or {}) | {unit.name: unit.attempt for unit in outcome.units}
    return {
        "start_time": snapshot.past.start_time or snapshot.stamp,
        "active_since": snapshot.past.active_since or snapshot.stamp,
        "restarts": outcome.restarts,
        "attempts": {name: count for name, count in attempts.items() if count} or None,
    }


def _rollouts(snapshot: Look, job: AlignmentJob) -> Mapping[str, Any]:
    if not job.spec.samples:
        return {}
    group = generating(snapshot.processes)
    pods = [view for view in snapshot.firsts_of(group) if not pod_state.leaving(view)]
    is_multi_pod = any(process.elastic and process.world_size > 1 for process in snapshot.processes)
    selector = names.rollout_selector(snapshot.uid, group, several=is_multi_pod)
    return {"rollout_replicas": len(pods), "selector": selector}


def _deadline(snapshot: Look, job: AlignmentJob) -> Cause | None:
    seconds = job.spec.lifecycle.active_deadline_seconds
    if seconds is None or active_seconds(snapshot.past, snapshot.now) < seconds:
        return None
    return Cause(DEADLINE, f"the job has run for {seconds:g} s (lifecycle.activeDeadlineSeconds)")


def _deadline_at(snapshot: Look, job: AlignmentJob) -> list[datetime]:
    seconds = job.spec.lifecycle.active_deadline_seconds
    if seconds is None:
        return []
    try:
        return [snapshot.now + timedelta(seconds=seconds - active_seconds(snapshot.past, snapshot.now))]
    except OverflowError:
        return []


def _slow_at(snapshot: Look) -> list[datetime]:
    """Return the times at which pods that have not started count as slow."""
    times = [
        view.created_at + SLOW_AFTER
        for view in snapshot.pods
        if view.created_at is not None and pod_state.waiting(view) is not None
    ]
    return [time for time in times if time > snapshot.now]
