"""Turns to start: jobs without a queue create the pods that must run together one job after the other.

Two jobs that create their pods at the same time can each get half of the GPUs, and wait for each other. A
turn begins before the first of these pods is created, and ends once those that the job needs have a node.
Turns are recorded in the status of the jobs, so that they survive a restart of the operator.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from kubealign.process_settings import Role
from kubealign.role_specs import StartStage
from kubealign.roles import PREPARE
from kubealign.spec.job import AlignmentJob
from kubealign.spec.status import JobPhase, StartTurnStatus
from kubealign.termination_message import truncate_middle
from kubealign_operator.kube_views import pod_state
from kubealign_operator.kube_views.observed_job import PodView, StartingJob
from kubealign_operator.planner import start_order
from kubealign_operator.planner.plan import KubeEventType, PlannedEvent
from kubealign_operator.planner.process_units import ProcessUnit
from kubealign_operator.planner.readiness import blocking_reason
from kubealign_operator.planner.snapshot import JobSnapshot

WAITS_FOR_TURN = "WaitsForTurn"
TURN_LOST = "StartTurnLost"
_MAX_NAMED = 3
_MAX_LOST_LENGTH = 1000

#: Order of the jobs in the queue, and of the jobs that have a turn.
_Order = tuple[datetime, str, str]


@dataclass(frozen=True)
class StartTurn:
    """The turn of a job.

    Args:
        status: What the status records of it; None: nothing.
        obstacle: Reason why the job's pods are not created, without its name; empty: they are.
        held_back: Names of the units whose pods are not created yet although nothing else prevents it.
        undone: Pods of a start that has not come about.
        requeue_at: Time at which the turn can be lost.
    """

    status: StartTurnStatus | None = None
    obstacle: str = ""
    held_back: frozenset[str] = frozenset()
    undone: tuple[PodView, ...] = ()
    events: tuple[PlannedEvent, ...] = ()
    requeue_at: tuple[datetime, ...] = ()


def start_turn(snapshot: JobSnapshot, job: AlignmentJob) -> StartTurn:
    """Return the turn of a job that no queue admits.

    Preparation, which waits for no other pod of the job, takes no turn, and neither does a job that runs.
    """
    previous = snapshot.previous_status
    recorded = previous.start_turn or StartTurnStatus()
    if recorded.ended_at is not None:
        return StartTurn(StartTurnStatus(ended_at=recorded.ended_at))
    if previous.phase is JobPhase.RUNNING:
        return StartTurn()
    units = snapshot.units(previous.attempts)
    others = [unit for unit in units if unit.name != PREPARE]
    if not (start_order.was_prepared(snapshot) or start_order.has_prepared(units)):
        return StartTurn(held_back=frozenset(unit.name for unit in others))
    if start_order.has_enough(others, job, _has_nodes):
        return StartTurn(StartTurnStatus(ended_at=snapshot.timestamp))
    extra = _extra_workers(others, job)
    needed = [unit for unit in others if unit.name not in extra and unit.start is not StartStage.LAST]
    if recorded.held_since is not None:
        return _keep_turn(snapshot, job, recorded.held_since, needed, extra)
    return _ask_for_turn(snapshot, recorded, extra)


def _keep_turn(
    snapshot: JobSnapshot,
    job: AlignmentJob,
    since: datetime,
    needed: Sequence[ProcessUnit],
    extra: frozenset[str],
) -> StartTurn:
    """Keep the turn, unless its time is over and another job waits.

    An operator that has lost its lease may have begun the turn of another job at the same moment: the turn
    that began first goes on.
    """
    own = (since, snapshot.namespace, snapshot.name)
    if any(began < own for began, _ in _holders(snapshot)):
        return _lose_turn(snapshot, "another job had its turn")
    seconds = snapshot.platform.start_turn_seconds
    left = timedelta(seconds=seconds) - max(timedelta(), snapshot.now - since)
    if left <= timedelta() and _waiters(snapshot):
        return _lose_turn(snapshot, _describe_missing(snapshot, job, needed, seconds))
    return StartTurn(StartTurnStatus(held_since=since), held_back=extra, requeue_at=_end(snapshot, left))


def _end(snapshot: JobSnapshot, left: timedelta) -> tuple[datetime, ...]:
    try:
        return (snapshot.now + left,) if left > timedelta() else ()
    except OverflowError:
        return ()


def _lose_turn(snapshot: JobSnapshot, cause: str) -> StartTurn:
    undone = _unfinished_pods(snapshot)
    event = PlannedEvent(KubeEventType.WARNING, TURN_LOST, f"lost its turn to start: {cause}")
    if undone:
        return StartTurn(StartTurnStatus(lost=cause), event.message, undone=undone, events=(event,))
    status = StartTurnStatus(waiting_since=snapshot.timestamp, lost=cause)
    return StartTurn(status, event.message, events=(event,))


def _ask_for_turn(snapshot: JobSnapshot, recorded: StartTurnStatus, extra: frozenset[str]) -> StartTurn:
    """Take the turn, or wait for it: first come, first served."""
    lost = f"; lost its last turn: {recorded.lost}" if recorded.lost else ""
    undone = _unfinished_pods(snapshot)
    if undone:
        # It is in the queue once its pods are gone: until then it could not use its turn.
        processes = ", ".join(snapshot.process_name(pod) for pod in undone[:_MAX_NAMED])
        obstacle = f"waits for {processes} to end, before it waits for its turn to start{lost}"
        return StartTurn(StartTurnStatus(lost=recorded.lost), obstacle, undone=undone)
    since = recorded.waiting_since or snapshot.timestamp
    own = (since, snapshot.namespace, snapshot.name)
    ahead = [entry for entry in _waiters(snapshot) if entry[0] < own]
    first = next((other for _, other in (*_holders(snapshot), *ahead)), None)
    if first is None:
        status = StartTurnStatus(held_since=snapshot.timestamp, lost=recorded.lost)
        return StartTurn(status, held_back=extra)
    obstacle = f"waits for {_named(snapshot, first)} to start, position {len(ahead) + 1}{lost}"
    events: tuple[PlannedEvent, ...] = ()
    if recorded.waiting_since is None:
        events = (PlannedEvent(KubeEventType.NORMAL, WAITS_FOR_TURN, obstacle),)
    return StartTurn(StartTurnStatus(waiting_since=since, lost=recorded.lost), obstacle, events=events)


def _holders(snapshot: JobSnapshot) -> list[tuple[_Order, StartingJob]]:
    """Return the other jobs that have a turn, in the order in which these began."""
    return _ordered((job.held_since, job) for job in snapshot.observed.starting_jobs)


def _waiters(snapshot: JobSnapshot) -> list[tuple[_Order, StartingJob]]:
    """Return the other jobs that wait for a turn, in the order of the queue."""
    starting = snapshot.observed.starting_jobs
    return _ordered((job.waiting_since, job) for job in starting if job.held_since is None)


def _ordered(jobs: Iterable[tuple[datetime | None, StartingJob]]) -> list[tuple[_Order, StartingJob]]:
    entries = [((since, job.namespace, job.name), job) for since, job in jobs if since is not None]
    return sorted(entries, key=lambda entry: entry[0])


def _named(snapshot: JobSnapshot, other: StartingJob) -> str:
    """Name another job; tenants do not learn the names of jobs in other namespaces."""
    return f"job {other.name}" if other.namespace == snapshot.namespace else "a job of another namespace"


def _has_nodes(unit: ProcessUnit) -> bool:
    is_ending = any(pod_state.is_terminating(pod) for _, pod in unit.current_pods)
    return start_order.is_scheduled(unit) and not is_ending


def _extra_workers(units: Sequence[ProcessUnit], job: AlignmentJob) -> frozenset[str]:
    """Return the rollout workers above `minReplicas`, whose pods could take the room of those needed."""
    rollout = job.spec.own_rollout
    workers = [unit.name for unit in units if unit.group == Role.ROLLOUT]
    return frozenset(workers if rollout is None else workers[rollout.min_replicas :])


def _unfinished_pods(snapshot: JobSnapshot) -> tuple[PodView, ...]:
    """Return the pods of a start that may still run or whose names are still taken; not preparation's.

    Failed pods that are kept for their logs, and those that only finalizers keep, are no obstacle.
    """
    return tuple(
        pod
        for pod in snapshot.remaining_pods
        if snapshot.process_name(pod) != PREPARE
        and (pod_state.is_terminating(pod) or not pod_state.has_terminated(pod))
    )


def _describe_missing(
    snapshot: JobSnapshot, job: AlignmentJob, units: Sequence[ProcessUnit], seconds: int
) -> str:
    """Name the pods that have no node, and quote the scheduler."""
    missing = [
        unit.pod_name(member) if member.pod is None else member.pod.name
        for unit in units
        for member in unit.members
        if member.pod is None or not pod_state.was_scheduled(member.pod)
    ]
    listed = ", ".join(missing[:_MAX_NAMED])
    if len(missing) > _MAX_NAMED:
        listed += f" and {len(missing) - _MAX_NAMED} more"
    restarts, budget = snapshot.previous_status.restarts or 0, job.spec.lifecycle.max_restarts
    reason = blocking_reason(snapshot, units, restarts, budget)
    detail = "" if reason is None else f": {reason.message}"
    return truncate_middle(f"no node for pod {listed} within {seconds} s{detail}", _MAX_LOST_LENGTH)
