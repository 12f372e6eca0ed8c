"""The clocks of a job's deadlines: its active time, and the time for which its pods have not all started."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from kubealign.spec.job import AlignmentJob
from kubealign_operator.kube_views import pod_state
from kubealign_operator.planner import start_order
from kubealign_operator.planner.failure_reasons import FailureReason
from kubealign_operator.planner.previous_status import active_seconds
from kubealign_operator.planner.process_units import ProcessUnit
from kubealign_operator.planner.snapshot import JobSnapshot

START_DEADLINE = "StartDeadlineExceeded"


def clock_changes(
    snapshot: JobSnapshot,
    job: AlignmentJob,
    units: Sequence[ProcessUnit],
    startable: frozenset[str],
    *,
    running: bool,
) -> Mapping[str, Any]:
    """Return the status fields of the clocks: active_since, active_seconds and starting_since.

    The active time stands still while pods that the job needs wait in a queue or for a node, until the job
    runs for the first time after its start, a suspension or a retry. The start deadline's clock runs while
    such pods have not all started, but not while a queue has not admitted one of them.

    Args:
        startable: Names of the units that may start now.
        running: Everything that the driver needs is ready, or was.
    """
    previous = snapshot.previous_status
    candidates = [unit for unit in units if unit.name in startable]
    changes: dict[str, Any] = {
        "active_since": previous.active_since,
        "active_seconds": previous.active_seconds,
    }
    if running or start_order.has_enough(candidates, job, start_order.is_scheduled):
        changes["active_since"] = previous.active_since or snapshot.timestamp
    elif previous.active_since is not None:
        changes = {
            "active_since": None,
            "active_seconds": active_seconds(previous, snapshot.timestamp) or None,
        }
    is_queued = any(pod_state.is_gated(pod) for unit in candidates for _, pod in unit.current_pods)
    if running or is_queued or start_order.has_enough(candidates, job, _has_started):
        changes["starting_since"] = None
    else:
        changes["starting_since"] = previous.starting_since or snapshot.timestamp
    return changes


def start_deadline_failure(
    job: AlignmentJob, changes: Mapping[str, Any], now: datetime, cause: str
) -> FailureReason | None:
    """Return the failure of a job whose pods have not all started in time.

    Args:
        changes: Result of `clock_changes`.
        cause: Sentence about the first process that has not started; empty: unknown.
    """
    seconds, since = job.spec.lifecycle.start_deadline_seconds, changes["starting_since"]
    if seconds is None or since is None or (now - since).total_seconds() < seconds:
        return None
    message = f"the job has not started within {seconds} s (lifecycle.startDeadlineSeconds)"
    return FailureReason(START_DEADLINE, f"{message}: {cause}" if cause else message)


def deadline_times(snapshot: JobSnapshot, job: AlignmentJob, changes: Mapping[str, Any]) -> list[datetime]:
    """Return the times at which running clocks reach their deadlines."""
    lifecycle, times = job.spec.lifecycle, []
    active = lifecycle.active_deadline_seconds
    try:
        if active is not None and changes["active_since"] is not None:
            used = active_seconds(snapshot.previous_status, snapshot.now)
            times.append(snapshot.now + timedelta(seconds=active - used))
        if lifecycle.start_deadline_seconds is not None and changes["starting_since"] is not None:
            times.append(changes["starting_since"] + timedelta(seconds=lifecycle.start_deadline_seconds))
    except OverflowError:
        return times
    return times


def _has_started(unit: ProcessUnit) -> bool:
    """Return True when all processes of the unit are ready; one that runs to completion need only run."""
    if not unit.runs_to_completion:
        return start_order.is_complete(unit)
    return all(member.pod is not None and pod_state.has_run(member.pod) for member in unit.members)
