"""The Starting and Running phases: Running begins once everything that the driver needs is ready."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from kubealign.roles import PREPARE
from kubealign.spec.job import AlignmentJob
from kubealign.spec.status import (
    CredentialsStatus,
    DependencyResult,
    JobPhase,
    ResultLocation,
)
from kubealign.storage_errors import STORAGE_WAIT_PREFIX
from kubealign_operator.kube_views import pod_state
from kubealign_operator.manifests.context import RenderContext
from kubealign_operator.manifests.pod import build_pod
from kubealign_operator.planner import start_order
from kubealign_operator.planner.admission.conditions import admission_conditions
from kubealign_operator.planner.admission.job_admission import JobAdmission, UnknownFlavor, render_context
from kubealign_operator.planner.admission.workload_changes import (
    WorkloadActions,
    delete_workloads,
    maintain_workloads,
    unadmitted_scaled_workers,
)
from kubealign_operator.planner.clocks import clock_changes, deadline_times, start_deadline_failure
from kubealign_operator.planner.credentials import current_credentials, outdated_pods, renewal_time
from kubealign_operator.planner.document import current_document
from kubealign_operator.planner.failure_reasons import SLOW_START_AFTER, FailureReason
from kubealign_operator.planner.missing_objects import missing_credentials, missing_document, missing_objects
from kubealign_operator.planner.phases.draining import draining_pods, plan_draining
from kubealign_operator.planner.phases.finished import (
    deadline_failure,
    has_succeeded,
    permanent_failure,
    plan_failure,
    plan_success,
)
from kubealign_operator.planner.phases.renewal import plan_renewal
from kubealign_operator.planner.plan import (
    ACCEPTED,
    DEPENDENCIES_READY,
    PREPARED,
    READY,
    STORAGE_FULL,
    SUSPENDED,
    Decision,
    DesiredCondition,
    desired_condition,
)
from kubealign_operator.planner.pod_actions import PodActions, plan_pod_actions
from kubealign_operator.planner.pod_events import restart_causes
from kubealign_operator.planner.previous_status import condition_of
from kubealign_operator.planner.process_units import ProcessUnit
from kubealign_operator.planner.readiness import (
    blocking_reason,
    leftover_message,
    pending_processes,
    refused_object_reason,
    role_statuses,
    rollout_status,
)
from kubealign_operator.planner.restart_policy import RestartOutcome, apply_restart_policy
from kubealign_operator.planner.snapshot import JobSnapshot


def plan_active(
    snapshot: JobSnapshot,
    job: AlignmentJob,
    dependencies: Sequence[DependencyResult],
    checkpoint_source: ResultLocation | None,
    admission: JobAdmission | None = None,
    held_back: frozenset[str] = frozenset(),
) -> Decision:
    """Decide how to keep an active job going, or to end it.

    Args:
        dependencies: Results of other jobs that the job reads.
        checkpoint_source: Run directory from whose checkpoint the job starts.
        admission: Kueue's admission of the job; None: no queue admits it.
        held_back: Names of the units whose pods are not created yet.
    """
    if has_succeeded(snapshot):
        return plan_success(snapshot)
    failure_reason = permanent_failure(snapshot) or deadline_failure(snapshot, job)
    if failure_reason is not None:
        return plan_failure(snapshot, failure_reason)
    lifecycle = job.spec.lifecycle
    prepared = start_order.was_prepared(snapshot)
    units = snapshot.units(snapshot.previous_status.attempts)
    prepared = prepared or start_order.has_prepared(units)
    # The output of preparation is in the run directory: its pod is not needed again.
    managed = [unit for unit in units if not (prepared and unit.name == PREPARE)]
    restarts, restarts_since_step = _count_restarts(snapshot, job)
    document = current_document(snapshot, job)
    credentials = current_credentials(snapshot, document.change)
    context = render_context(
        snapshot,
        job,
        dependencies,
        checkpoint_source,
        credentials.status.generation,
        document.status.generation,
    )
    credentials_request = missing_credentials(snapshot, context, credentials.status.expires_at)
    status_changes = {
        "image": context.platform.image,
        "start_time": snapshot.previous_status.start_time or snapshot.timestamp,
        "dependencies": list(dependencies) or None,
        "checkpoint_source": checkpoint_source,
        "credentials": credentials.status,
        "document": document.status,
        **rollout_status(snapshot, job),
    }
    if outdated_pods(snapshot, credentials.status):
        status_changes["roles"] = role_statuses(units, prepared)
        return plan_renewal(
            snapshot,
            credentials,
            credentials_request,
            status_changes,
            prepared=prepared,
            document=document,
            create=missing_document(snapshot, context),
        )
    draining = draining_pods(snapshot, managed)
    if draining and snapshot.previous_status.phase is JobPhase.RUNNING:
        # The roles of the status stay: the group was complete, which tells of a rank whose end is not seen.
        return plan_draining(snapshot, draining, status_changes)
    outcome = apply_restart_policy(managed, restarts, lifecycle.max_restarts, _complete_groups(snapshot))
    if outcome.failure is not None:
        return plan_failure(snapshot, outcome.failure)
    waiting = unadmitted_scaled_workers(admission, outcome.units)
    needed = [unit for unit in outcome.units if unit.name not in waiting]
    running = snapshot.previous_status.phase is JobPhase.RUNNING or (
        prepared and start_order.all_ready(needed, job)
    )
    workloads = WorkloadActions()
    if admission is not None:
        workloads = maintain_workloads(snapshot, admission, outcome.units, running=running)
    elif snapshot.platform.uses_kueue:
        # The label of its queue has been removed from the job.
        workloads.changes += delete_workloads(snapshot)
    startable = start_order.startable_units(outcome.units, prepared, running)
    startable -= workloads.unadmitted | waiting | held_back
    causes = restart_causes(outcome, lifecycle.max_restarts)
    actions = plan_pod_actions(snapshot, outcome.units, startable, causes)
    pods, flavor_problem = _build_pods(context, admission, actions)
    problem = (
        refused_object_reason(snapshot)
        or flavor_problem
        or blocking_reason(snapshot, outcome.units, outcome.restarts, lifecycle.max_restarts)
    )
    pending = pending_processes(outcome.units, startable)
    clocks = clock_changes(snapshot, job, outcome.units, startable, running=running)
    late = start_deadline_failure(
        job, clocks, snapshot.now, problem.message if problem is not None else pending
    )
    if late is not None:
        return plan_failure(snapshot, late)
    phase = JobPhase.RUNNING if running else JobPhase.STARTING
    return Decision(
        phase,
        problem.message
        if problem is not None
        else pending
        or _driver_message(snapshot, running)
        or _unadmitted_message(admission, workloads, waiting)
        or leftover_message(snapshot),
        conditions=(
            *_conditions(snapshot, problem, pending, prepared, running),
            *admission_conditions(admission),
        ),
        status_changes={
            **status_changes,
            **_restart_status(snapshot, outcome),
            **clocks,
            "restarts_since_step": restarts_since_step,
            "roles": role_statuses(_latest_units(units, outcome.units), prepared),
        },
        credentials=credentials_request,
        delete=(*actions.delete, *workloads.delete_pods),
        workload_changes=tuple(workloads.changes),
        create=(*missing_objects(snapshot, context), *workloads.create, *pods),
        events=(
            *credentials.events,
            *document.events,
            *(causes[restart.unit] for restart in outcome.new_restarts),
        ),
        pod_events=tuple(actions.events),
        requeue_at=(
            *actions.requeue_at,
            *deadline_times(snapshot, job, clocks),
            *_slow_start_times(snapshot),
            *_renewal_times(credentials.status),
        ),
    )


def _build_pods(
    context: RenderContext, admission: JobAdmission | None, actions: PodActions
) -> tuple[list[dict[str, Any]], FailureReason | None]:
    """Build the missing pods. Return them, and why some cannot be built."""
    pods, problem = [], None
    for member, attempt in actions.create:
        try:
            placements = () if admission is None else admission.placements(member.process)
        except UnknownFlavor as error:
            problem = FailureReason("Refused", f"{member.process.name}: {error}")
            continue
        pods.append(build_pod(context, member.process, attempt, placements))
    return pods, problem


def _unadmitted_message(
    admission: JobAdmission | None, workloads: WorkloadActions, waiting: Collection[str]
) -> str:
    """Describe the workers that Kueue has not admitted, without blocking the job; empty: none.

    Args:
        waiting: Names of environment workers and scorers that wait for another admission of the job.
    """
    if admission is None or not (workloads.unadmitted or waiting):
        return ""
    if waiting:
        names = ", ".join(sorted(waiting))
        return (
            f"{names}: queue {admission.queue} of Kueue has admitted the job with fewer of these workers; "
            "suspend and resume it to be admitted with more"
        )
    count = len(workloads.unadmitted)
    workers = "1 more rollout worker waits" if count == 1 else f"{count} more rollout workers wait"
    if admission.prebuilt:
        return f"{workers} for an admission of the job with more: MultiKueue admits it as a whole"
    return f"{workers} in queue {admission.queue} of Kueue"


def _complete_groups(snapshot: JobSnapshot) -> frozenset[str]:
    return frozenset(
        role.name for role in snapshot.previous_status.roles or [] if role.ready >= role.replicas > 0
    )


def _latest_units(units: Sequence[ProcessUnit], judged_units: Sequence[ProcessUnit]) -> list[ProcessUnit]:
    newest = {unit.name: unit for unit in judged_units}
    return [newest.get(unit.name, unit) for unit in units]


def _driver_message(snapshot: JobSnapshot, running: bool) -> str:
    progress = snapshot.observed.progress
    if not running or progress is None or not progress.waiting_for:
        return ""
    return f"waits for {progress.waiting_for}"


def _conditions(
    snapshot: JobSnapshot, problem: FailureReason | None, pending: str, prepared: bool, running: bool
) -> tuple[DesiredCondition, ...]:
    ready = desired_condition(READY, True, "AllReady")
    if problem is not None:
        ready = desired_condition(READY, False, problem.reason, problem.message)
    elif pending or not running:
        ready = desired_condition(READY, False, "Starting", pending)
    result = [
        desired_condition(ACCEPTED, True, "Valid"),
        desired_condition(DEPENDENCIES_READY, True, "Ready"),
        desired_condition(PREPARED, prepared, "Prepared" if prepared else "Preparing"),
        ready,
    ]
    storage = _storage_problem(snapshot, problem)
    if storage:
        result.append(desired_condition(STORAGE_FULL, True, "WaitsForStorage", storage))
    elif condition_of(snapshot.previous_status, STORAGE_FULL) is not None:
        result.append(desired_condition(STORAGE_FULL, False, "Written"))
    if condition_of(snapshot.previous_status, SUSPENDED) is not None:
        result.append(desired_condition(SUSPENDED, False, "Resumed"))
    return tuple(result)


def _storage_problem(snapshot: JobSnapshot, problem: FailureReason | None) -> str:
    """Return why a process waits for storage; empty: none does."""
    if problem is not None:
        return problem.message if problem.reason == STORAGE_FULL else ""
    progress = snapshot.observed.progress
    waiting = "" if progress is None else progress.waiting_for
    return f"driver: {waiting}" if waiting.startswith(STORAGE_WAIT_PREFIX) else ""


def _count_restarts(snapshot: JobSnapshot, job: AlignmentJob) -> tuple[int, int | None]:
    """Return the restarts that count, and the step since which they do.

    A job that is as many steps further as lie between two checkpoints has saved one: its restarts are
    forgotten. A job that repeats the same steps is never that far.
    """
    status = snapshot.previous_status
    restarts, since = status.restarts or 0, status.restarts_since_step
    step = snapshot.step or 0
    if restarts and step >= (since or 0) + job.spec.checkpoint.every_steps:
        return 0, step
    return restarts, since


def _restart_status(snapshot: JobSnapshot, outcome: RestartOutcome) -> Mapping[str, Any]:
    attempts = dict(snapshot.previous_status.attempts or {}) | {
        unit.name: unit.attempt for unit in outcome.units
    }
    return {
        "restarts": outcome.restarts,
        "attempts": {name: count for name, count in attempts.items() if count} or None,
    }


def _renewal_times(credentials: CredentialsStatus) -> list[datetime]:
    time = renewal_time(credentials)
    return [] if time is None else [time]


def _slow_start_times(snapshot: JobSnapshot) -> list[datetime]:
    """Return the times at which pods that have not started count as slow."""
    times = [
        view.created_at + SLOW_START_AFTER
        for view in snapshot.pods
        if view.created_at is not None and pod_state.waiting_state(view) is not None
    ]
    return [time for time in times if time > snapshot.now]
