"""Plans one reconcile of a job: the desired state as a pure function of the observed state."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

from kubealign.roles import roles
from kubealign.spec.job import AlignmentJob
from kubealign.spec.status import DependencyResult, JobPhase, ResultLocation
from kubealign_operator.kube_views.kueue_view import is_dispatched
from kubealign_operator.kube_views.observed_job import ObservedState
from kubealign_operator.manifests.context import Platform
from kubealign_operator.manifests.pod_layout import pod_layout_errors, processes_per_pod
from kubealign_operator.manifests.pod_templates import profile_errors
from kubealign_operator.planner.admission.job_admission import JobAdmission, job_admission
from kubealign_operator.planner.admission.prebuilt_workload import adopt_workload
from kubealign_operator.planner.failure_reasons import FailureReason
from kubealign_operator.planner.phases.dispatched import plan_dispatched
from kubealign_operator.planner.phases.finished import (
    deadline_failure,
    has_succeeded,
    permanent_failure,
    plan_failure,
    plan_finished,
    plan_success,
)
from kubealign_operator.planner.phases.one_at_a_time import plan_with_turn
from kubealign_operator.planner.phases.pending import (
    dependency_errors,
    plan_invalid,
    plan_waiting,
    resolve_checkpoint_source,
    resolve_dependencies,
)
from kubealign_operator.planner.phases.queued import plan_queued
from kubealign_operator.planner.phases.retry import plan_retry, requested_retry
from kubealign_operator.planner.phases.running import plan_active
from kubealign_operator.planner.phases.suspended import plan_suspended, plan_suspending
from kubealign_operator.planner.plan import Decision, ReconcilePlan
from kubealign_operator.planner.snapshot import JobSnapshot, take_snapshot
from kubealign_operator.planner.status import build_plan, status_json
from kubealign_operator.planner.validation import (
    InvalidJob,
    cluster_errors,
    parse_job,
    queue_errors,
    size_error,
)


def plan_reconcile(observed: ObservedState, now: datetime, platform: Platform) -> ReconcilePlan:
    """Plan one reconcile of a job.

    Never raises, whatever was observed.

    Args:
        observed: State of the job and of the objects that belong to it.
        now: Current time, with a time zone.
        platform: Settings of the platform's administrator.
    """
    job, error = _parse(observed, platform)
    if job is None or error:
        snapshot = take_snapshot((), observed, now, platform)
    else:
        pod_size = partial(processes_per_pod, platform, job.spec)
        snapshot = take_snapshot(roles(job), observed, now, platform, pod_size)
    if snapshot.is_deleting and not (
        snapshot.previous_status.phase is not None and snapshot.previous_status.phase.is_final
    ):
        # Kubernetes garbage-collects the pods together with the job.
        return ReconcilePlan(status=status_json(snapshot.previous_status))
    if is_dispatched(observed.job):
        return plan_dispatched(snapshot, job, error)
    decision = _decide(snapshot, job, error)
    changes = (*adopt_workload(snapshot), *decision.workload_changes)
    return build_plan(snapshot, replace(decision, workload_changes=changes))


def _parse(observed: ObservedState, platform: Platform) -> tuple[AlignmentJob | None, str]:
    """Return the job, None when it cannot be read, and why it is invalid; empty: it is not."""
    if observed.unreadable:
        return None, observed.unreadable
    try:
        job = parse_job(observed.job)
    except InvalidJob as error:
        return None, str(error)
    return job, size_error(job, platform.max_processes)


def _decide(snapshot: JobSnapshot, job: AlignmentJob | None, error: str) -> Decision:
    phase = snapshot.previous_status.phase
    if phase is not None and phase.is_final:
        if requested_retry(snapshot):
            return plan_retry(snapshot, phase, job, error)
        return plan_finished(snapshot, phase)
    if job is None or error:
        return _decide_unplannable(snapshot, error)
    missing = "; ".join(str(problem) for problem in profile_errors(snapshot.platform, job.spec))
    if missing:
        # Also of a job that has started: its next pods could not be made as its author meant them.
        return _decide_unplannable(snapshot, missing)
    errors = _validation_errors(snapshot, job)
    if errors:
        return plan_invalid(snapshot, "; ".join(errors))
    if phase in (JobPhase.STARTING, JobPhase.RUNNING, JobPhase.SUSPENDING):
        return _decide_active(snapshot, job)
    return _decide_inactive(snapshot, job)


def _decide_unplannable(snapshot: JobSnapshot, error: str) -> Decision:
    """Decide on a job that this operator can plan no pods for.

    One that has started goes on as it is, and its end is seen: it was admitted by an operator that was less
    strict, or was scaled beyond the limit.
    """
    if snapshot.has_started:
        if has_succeeded(snapshot):
            return plan_success(snapshot)
        failure_reason = permanent_failure(snapshot, of_any_process=True)
        if failure_reason is not None:
            return plan_failure(snapshot, failure_reason)
    return plan_invalid(snapshot, error)


def _validation_errors(snapshot: JobSnapshot, job: AlignmentJob) -> list[str]:
    if snapshot.has_started and job.spec.checkpoint.volume is not None:
        return []
    errors = (
        *cluster_errors(job),
        *queue_errors(job, uses_kueue=snapshot.platform.uses_kueue),
        *pod_layout_errors(snapshot.platform, job.spec, snapshot.processes),
        *dependency_errors(snapshot, job),
    )
    return [str(error) for error in errors]


def _decide_active(snapshot: JobSnapshot, job: AlignmentJob) -> Decision:
    previous = snapshot.previous_status
    admission = job_admission(snapshot, job, previous.dependencies or [], previous.checkpoint_source)
    lost_quota = "" if admission is None else admission.obstacle
    if previous.phase is JobPhase.SUSPENDING or job.spec.suspend or lost_quota:
        if has_succeeded(snapshot):
            return plan_success(snapshot)
        failure_reason = permanent_failure(snapshot)
        if failure_reason is not None:
            return plan_failure(snapshot, failure_reason)
        if snapshot.remaining_pods:
            return plan_suspending(snapshot, admission, "" if job.spec.suspend else lost_quota)
        if job.spec.suspend:
            return plan_suspended(snapshot)
    return _plan_started(snapshot, job, admission)


def _decide_inactive(snapshot: JobSnapshot, job: AlignmentJob) -> Decision:
    if job.spec.suspend:
        return plan_suspended(snapshot)
    if snapshot.has_started:
        previous = snapshot.previous_status
        admission = job_admission(snapshot, job, previous.dependencies or [], previous.checkpoint_source)
        return _plan_started(snapshot, job, admission)
    results = resolve_dependencies(snapshot, job)
    if isinstance(results, str):
        return plan_waiting(results)
    if isinstance(results, FailureReason):
        return plan_failure(snapshot, results)
    checkpoint_source = resolve_checkpoint_source(snapshot, job)
    if isinstance(checkpoint_source, str):
        return plan_waiting(checkpoint_source)
    if isinstance(checkpoint_source, FailureReason):
        return plan_failure(snapshot, checkpoint_source)
    admission = job_admission(snapshot, job, results, checkpoint_source)
    return _plan_admitted(snapshot, job, results, checkpoint_source, admission)


def _plan_started(snapshot: JobSnapshot, job: AlignmentJob, admission: JobAdmission | None) -> Decision:
    """Decide on a job that has started: what it reads of other jobs was recorded then."""
    previous = snapshot.previous_status
    return _plan_admitted(snapshot, job, previous.dependencies or [], previous.checkpoint_source, admission)


def _plan_admitted(
    snapshot: JobSnapshot,
    job: AlignmentJob,
    dependencies: Sequence[DependencyResult],
    checkpoint_source: ResultLocation | None,
    admission: JobAdmission | None,
) -> Decision:
    """Decide on a job that may run as soon as its queue, if it has one, admits it."""
    if admission is not None and admission.obstacle:
        deadline = deadline_failure(snapshot, job)
        if deadline is not None:
            return plan_failure(snapshot, deadline)
        return plan_queued(snapshot, admission, dependencies, checkpoint_source)
    if admission is None and snapshot.platform.start_one_at_a_time:
        return plan_with_turn(snapshot, job, dependencies, checkpoint_source)
    return plan_active(snapshot, job, dependencies, checkpoint_source, admission)
