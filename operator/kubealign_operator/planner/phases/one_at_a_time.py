"""The start of a job in its turn: without its turn it waits, and has no pods but that of its preparation."""

from collections.abc import Sequence
from dataclasses import replace

from kubealign.spec.job import AlignmentJob
from kubealign.spec.status import DependencyResult, JobPhase, ResultLocation
from kubealign_operator.planner.admission.workload_changes import delete_workloads
from kubealign_operator.planner.clocks import deadline_times, start_deadline_failure
from kubealign_operator.planner.phases.finished import (
    deadline_failure,
    has_succeeded,
    permanent_failure,
    plan_failure,
    plan_success,
)
from kubealign_operator.planner.phases.running import plan_active
from kubealign_operator.planner.phases.suspended import stopped_status
from kubealign_operator.planner.plan import (
    ACCEPTED,
    DEPENDENCIES_READY,
    PREPARED,
    READY,
    SUSPENDED,
    Decision,
    desired_condition,
)
from kubealign_operator.planner.pod_actions import delete_pods, force_overdue_deletions
from kubealign_operator.planner.previous_status import condition_of
from kubealign_operator.planner.snapshot import JobSnapshot
from kubealign_operator.planner.start_turn import WAITS_FOR_TURN, StartTurn, start_turn


def plan_with_turn(
    snapshot: JobSnapshot,
    job: AlignmentJob,
    dependencies: Sequence[DependencyResult],
    checkpoint_source: ResultLocation | None,
) -> Decision:
    """Decide on a job that takes a turn to start.

    Args:
        dependencies: Results of other jobs that the job reads.
        checkpoint_source: Run directory from whose checkpoint the job starts.
    """
    turn = start_turn(snapshot, job)
    if turn.obstacle:
        return _plan_waiting(snapshot, job, turn)
    decision = plan_active(snapshot, job, dependencies, checkpoint_source, held_back=turn.held_back)
    if decision.phase not in (JobPhase.STARTING, JobPhase.RUNNING):
        return decision
    return replace(
        decision,
        status_changes={**decision.status_changes, "start_turn": turn.status},
        requeue_at=(*decision.requeue_at, *turn.requeue_at),
    )


def _plan_waiting(snapshot: JobSnapshot, job: AlignmentJob, turn: StartTurn) -> Decision:
    """Decide on a job without a turn. The pods of a start that has not come about are deleted.

    No restart is counted, and the attempts stay as they are: the next start has pods of the same names. The
    clock of the start deadline runs on from the first turn.
    """
    if has_succeeded(snapshot):
        return plan_success(snapshot)
    has_had_turn = turn.status is not None and turn.status.lost is not None
    starting_since = snapshot.previous_status.starting_since if has_had_turn else None
    clocks = {"active_since": None, "starting_since": starting_since}
    failure = (
        permanent_failure(snapshot)
        or deadline_failure(snapshot, job)
        or start_deadline_failure(job, clocks, snapshot.now, turn.obstacle)
    )
    if failure is not None:
        return plan_failure(snapshot, failure)
    overdue, requeue_at = force_overdue_deletions(snapshot)
    conditions = [
        desired_condition(ACCEPTED, True, "Valid"),
        desired_condition(DEPENDENCIES_READY, True, "Ready"),
        desired_condition(PREPARED, True, "Prepared"),
        desired_condition(READY, False, WAITS_FOR_TURN, turn.obstacle),
    ]
    if condition_of(snapshot.previous_status, SUSPENDED) is not None:
        conditions.append(desired_condition(SUSPENDED, False, "Resumed"))
    return Decision(
        JobPhase.PENDING,
        turn.obstacle,
        conditions=tuple(conditions),
        status_changes={**stopped_status(snapshot), **clocks, "start_turn": turn.status},
        delete=(*overdue, *delete_pods(turn.undone)),
        workload_changes=tuple(delete_workloads(snapshot)),
        events=turn.events,
        requeue_at=(*requeue_at, *deadline_times(snapshot, job, clocks)),
    )
