"""All phases of a job that MultiKueue dispatches to a worker cluster (spec.managedBy).

The operator of the manager cluster keeps the Workload of the job and nothing else. While the Workload has no
quota, nothing runs and the operator writes the status; from then on Kueue copies the status of the worker
cluster's job over it, and the operator leaves it alone.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from kubealign.labels import QUEUE_LABEL
from kubealign.spec.job import AlignmentJob
from kubealign.spec.status import JobPhase
from kubealign_operator.kube_views.kueue_view import WorkloadView
from kubealign_operator.kube_views.lenient_json import get_path, mapping, text, timestamp
from kubealign_operator.manifests.pod_layout import pod_layout_errors
from kubealign_operator.manifests.pod_templates import profile_errors
from kubealign_operator.planner.admission.job_admission import (
    JobAdmission,
    job_admission,
    main_workload,
)
from kubealign_operator.planner.admission.workload_changes import must_be_replaced
from kubealign_operator.planner.admission.workload_status import (
    ADMITTED,
    EVICTED,
    FINISHED,
    evict,
    release_reservation,
    was_suspended,
)
from kubealign_operator.planner.phases.finished import grace_seconds, plan_finished
from kubealign_operator.planner.phases.pending import plan_invalid
from kubealign_operator.planner.phases.queued import queued_conditions, queued_message, workload_refusal
from kubealign_operator.planner.phases.retry import plan_retry, requested_retry
from kubealign_operator.planner.phases.suspended import plan_suspended, stopped_status
from kubealign_operator.planner.plan import (
    ACCEPTED,
    Decision,
    ReconcilePlan,
    WorkloadChange,
    WorkloadDeletion,
    desired_condition,
)
from kubealign_operator.planner.previous_status import condition_of
from kubealign_operator.planner.snapshot import JobSnapshot
from kubealign_operator.planner.status import build_plan
from kubealign_operator.planner.validation import cluster_errors, multikueue_errors, queue_errors

#: Reason of the condition Accepted in a status of this operator, unlike one copied from a worker cluster.
_DISPATCHED = "MultiKueue"
#: Time, after the grace period, for Kueue to copy the status of a job that has stopped.
_STATUS_COPY = timedelta(seconds=60)
#: Beginnings of the reasons of an eviction of which Kueue deletes the worker cluster's job at once, or cannot
#: reach it.
_UNSAVED = ("AdmissionCheck", "Deactivated")
_REMOTE_PHASES = (JobPhase.STARTING, JobPhase.RUNNING, JobPhase.SUSPENDING)


@dataclass(frozen=True)
class _WorkloadActions:
    """Changes of the job's Workload. wait_until: time at which the next change is due; None: at an event."""

    changes: tuple[WorkloadChange, ...] = ()
    create: tuple[dict[str, object], ...] = ()
    wait_until: datetime | None = None


def plan_dispatched(snapshot: JobSnapshot, job: AlignmentJob | None, error: str) -> ReconcilePlan:
    """Plan one reconcile of a job that runs in a worker cluster.

    Args:
        job: None: the job cannot be read.
        error: Why the job is invalid; empty: it is valid.
    """
    phase = snapshot.previous_status.phase
    if phase is not None and phase.is_final:
        return _plan_ended(snapshot, phase, job, error)
    problems = error if job is None or error else "; ".join(_problems(snapshot, job))
    admission = None if job is None or problems else job_admission(snapshot, job, (), None)
    is_suspended = get_path(snapshot.observed.job, "spec", "suspend") is True
    actions = _withdraw(snapshot) if is_suspended else _request_quota(snapshot, admission)
    if not _may_write_status(snapshot):
        return _leave_status(snapshot, actions)
    if is_suspended and not problems:
        decision = _with_accepted(plan_suspended(snapshot))
    elif admission is None:
        decision = plan_invalid(snapshot, problems)
    else:
        decision = _plan_waiting(snapshot, admission, actions)
    return build_plan(
        snapshot,
        replace(
            decision,
            workload_changes=actions.changes,
            create=actions.create,
            requeue_at=_times(actions.wait_until),
        ),
    )


def _problems(snapshot: JobSnapshot, job: AlignmentJob) -> Iterable[str]:
    uses_kueue = snapshot.platform.uses_kueue
    errors = (
        *multikueue_errors(job, uses_kueue=uses_kueue),
        *queue_errors(job, uses_kueue=uses_kueue),
        *cluster_errors(job),
        *profile_errors(snapshot.platform, job.spec),
    )
    layout = () if errors else pod_layout_errors(snapshot.platform, job.spec, snapshot.processes)
    return [str(problem) for problem in (*errors, *layout)]


def _may_write_status(snapshot: JobSnapshot) -> bool:
    """Return True while no worker cluster can have the job, so that Kueue copies no status."""
    main = main_workload(snapshot)
    if main is None or not main.has_reservation:
        return True
    accepted = condition_of(snapshot.previous_status, ACCEPTED)
    is_own = accepted is not None and accepted.reason == _DISPATCHED
    # Kueue creates the job in the worker cluster before it admits this Workload. A status that it has copied
    # meanwhile is not overwritten: a write is for one version of the job.
    return is_own and not main.is_true(ADMITTED) and not main.is_true(FINISHED)


def _request_quota(snapshot: JobSnapshot, admission: JobAdmission | None) -> _WorkloadActions:
    """Ask Kueue for the quota of the job, and return what it has evicted.

    Args:
        admission: None: the job cannot ask for quota.
    """
    main = main_workload(snapshot)
    if main is None:
        can_ask = admission is not None and not admission.problem
        return _WorkloadActions(create=(dict(admission.manifest),) if admission and can_ask else ())
    if _is_ending(main):
        return _WorkloadActions()
    if main.must_be_released:
        return _release(snapshot, main)
    if main.has_reservation:
        return _WorkloadActions()
    if admission is None:
        has_queue = bool(get_path(snapshot.observed.job, "metadata", "labels", QUEUE_LABEL))
        return _WorkloadActions(() if has_queue else (_deletion(main),))
    if was_suspended(main) or must_be_replaced(admission, main):
        return _WorkloadActions((_deletion(main),))
    return _WorkloadActions()


def _withdraw(snapshot: JobSnapshot) -> _WorkloadActions:
    """Give up the quota of a suspended job, after the job in the worker cluster has saved a checkpoint."""
    main = main_workload(snapshot)
    if main is None or _is_ending(main):
        return _WorkloadActions()
    if main.must_be_released:
        return _release(snapshot, main)
    if main.has_reservation:
        return _WorkloadActions((evict(main, snapshot.timestamp),))
    return _WorkloadActions((_deletion(main),))


def _is_ending(main: WorkloadView) -> bool:
    """Return True for a Workload that is left alone, as its deletion or the status of its finished job is on
    its way. A Workload that has finished keeps its admission.
    """
    return main.is_deleting or (main.is_true(FINISHED) and main.has_reservation)


def _release(snapshot: JobSnapshot, main: WorkloadView) -> _WorkloadActions:
    """Return the reservation of an evicted Workload once the job in the worker cluster has stopped.

    Kueue deletes that job as soon as the reservation has gone.
    """
    eviction = mapping(main.condition(EVICTED))
    is_saved = not text(eviction.get("reason")).startswith(_UNSAVED)
    if is_saved and snapshot.previous_status.phase in _REMOTE_PHASES:
        evicted_at = timestamp(eviction.get("lastTransitionTime")) or snapshot.now
        deadline = evicted_at + timedelta(seconds=grace_seconds(snapshot)) + _STATUS_COPY
        if snapshot.now < deadline:
            return _WorkloadActions(wait_until=deadline)
    return _WorkloadActions((release_reservation(main, snapshot.timestamp),))


def _plan_waiting(snapshot: JobSnapshot, admission: JobAdmission, actions: _WorkloadActions) -> Decision:
    """Decide on the status of a job that no worker cluster has."""
    obstacle = admission.obstacle
    if admission.main is not None and admission.main.has_reservation:
        obstacle = f"has quota in queue {admission.queue} of Kueue, and waits for that of a worker cluster"
    message = queued_message(snapshot, obstacle)
    refusal = workload_refusal(snapshot, actions.create)
    return Decision(
        JobPhase.PENDING,
        refusal or message,
        conditions=(
            desired_condition(ACCEPTED, True, _DISPATCHED),
            *queued_conditions(snapshot, admission, message, refusal),
        ),
        status_changes=stopped_status(snapshot),
    )


def _plan_ended(
    snapshot: JobSnapshot, phase: JobPhase, job: AlignmentJob | None, error: str
) -> ReconcilePlan:
    """Plan one reconcile of a finished job, whose Workload Kueue has finished: its retry or its deletion."""
    main = main_workload(snapshot)
    if requested_retry(snapshot):
        if phase is JobPhase.FAILED and not error and main is not None:
            # First, since a finished Workload with an unfinished job is one whose status is on its way.
            deletion = () if main.is_deleting else (_deletion(main),)
            return _leave_status(snapshot, _WorkloadActions(deletion))
        decision = plan_retry(snapshot, phase, job, error)
        if not decision.phase.is_final:
            # The next worker cluster starts a job of its own.
            changes = {**decision.status_changes, "credentials": None, "document": None, "start_time": None}
            decision = replace(decision, phase=JobPhase.PENDING, status_changes=changes)
        return build_plan(snapshot, decision)
    ending = plan_finished(snapshot, phase)
    plan = _leave_status(snapshot, _WorkloadActions(wait_until=min(ending.requeue_at, default=None)))
    return replace(plan, delete_job=ending.delete_job)


def _leave_status(snapshot: JobSnapshot, actions: _WorkloadActions) -> ReconcilePlan:
    """Return a plan that keeps every field of the status, also those that this version does not know."""
    until = actions.wait_until
    return ReconcilePlan(
        status=dict(mapping(snapshot.observed.job.get("status"))),
        workload_changes=actions.changes,
        create=actions.create,
        requeue_after=None if until is None else max(0.0, (until - snapshot.now).total_seconds()) + 0.05,
    )


def _with_accepted(decision: Decision) -> Decision:
    accepted = desired_condition(ACCEPTED, True, _DISPATCHED)
    others = (condition for condition in decision.conditions if condition.type != ACCEPTED)
    return replace(decision, conditions=(accepted, *others))


def _deletion(view: WorkloadView) -> WorkloadDeletion:
    return WorkloadDeletion(view.name, view.uid)


def _times(time: datetime | None) -> tuple[datetime, ...]:
    return () if time is None else (time,)
