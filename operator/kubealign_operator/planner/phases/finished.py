"""The end of a job, and the clean-up after it. A finished job runs again only by a retry of a failed one."""

import math
from datetime import datetime, timedelta
from typing import Any

from kubealign.process_settings import ExitCode
from kubealign.roles import generation_role
from kubealign.spec.job import AlignmentJob
from kubealign.spec.status import ConditionStatus, JobPhase, ResultLocation, RoleStatus
from kubealign_operator import names
from kubealign_operator.kube_views import pod_state
from kubealign_operator.kube_views.lenient_json import get_path, mapping, number, text
from kubealign_operator.manifests.volume_claims import run_path
from kubealign_operator.planner import failure_reasons
from kubealign_operator.planner.admission.workload_changes import finish_workloads
from kubealign_operator.planner.failure_reasons import FailureReason
from kubealign_operator.planner.plan import (
    COMPLETE,
    FAILED,
    READY,
    SUSPENDED,
    Decision,
    DesiredCondition,
    PodDeletion,
    PodStop,
    desired_condition,
)
from kubealign_operator.planner.pod_actions import delete_pods, force_overdue_deletions
from kubealign_operator.planner.previous_status import active_seconds, condition_of
from kubealign_operator.planner.snapshot import JobSnapshot, live_pods

DEADLINE = "DeadlineExceeded"
_GRACE_SECONDS = 30.0
_AFTER_GRACE = timedelta(seconds=30)


def has_succeeded(snapshot: JobSnapshot) -> bool:
    """Return True when the driver has finished its work, whatever became of the other processes."""
    return any(pod_state.exit_code(pod) == ExitCode.DONE for pod in snapshot.pods_in_group(names.DRIVER))


def permanent_failure(snapshot: JobSnapshot, *, of_any_process: bool = False) -> FailureReason | None:
    """Return the reason of the first process that reported a permanent failure.

    Args:
        of_any_process: The processes of the job are unknown: those of all its pods count.
    """
    process_names = {process.name for process in snapshot.processes}
    # The exit code of a leftover has been seen before: a retry of the job must not fail by it.
    for pod in snapshot.remaining_pods:
        process = snapshot.process_name(pod)
        is_known = of_any_process or process in process_names
        if is_known and pod_state.exit_code(pod) == ExitCode.PERMANENT:
            return failure_reasons.permanent_failure_reason(process, pod)
    return None


def deadline_failure(snapshot: JobSnapshot, job: AlignmentJob) -> FailureReason | None:
    """Return the failure of a job whose running time is used up, counted over retries and suspensions."""
    seconds = job.spec.lifecycle.active_deadline_seconds
    if seconds is None or active_seconds(snapshot.previous_status, snapshot.now) < seconds:
        return None
    return FailureReason(DEADLINE, f"the job has run for {seconds:g} s (lifecycle.activeDeadlineSeconds)")


def plan_success(snapshot: JobSnapshot) -> Decision:
    """Decide that the job has succeeded. Its spec need not be readable."""
    steps = "" if snapshot.step is None else f" after step {snapshot.step}"
    conditions = (
        desired_condition(COMPLETE, True, "Succeeded"),
        desired_condition(FAILED, False, "Succeeded"),
    )
    result = _result_location(snapshot)
    return _finish(snapshot, JobPhase.SUCCEEDED, f"succeeded{steps}", conditions, "Succeeded", result=result)


def _result_location(snapshot: JobSnapshot) -> ResultLocation | None:
    """Return the folder of the result; None: the spec names no volume."""
    volume = mapping(get_path(snapshot.observed.job, "spec", "checkpoint", "volume"))
    claim_name = text(volume.get("claimName"))
    if not claim_name:
        return None
    has_copies = get_path(snapshot.observed.job, "spec", "checkpoint", "uri") is not None
    prebuilt = snapshot.prebuilt_workload
    folder = names.run_directory(snapshot.name, snapshot.uid, prebuilt, has_copies=has_copies)
    path = f"{run_path(text(volume.get('path')), folder)}/result"
    return ResultLocation.model_construct(claim_name=claim_name, path=path)


def plan_failure(snapshot: JobSnapshot, cause: FailureReason) -> Decision:
    """Decide that the job has failed."""
    conditions = (
        desired_condition(COMPLETE, False, cause.reason),
        desired_condition(FAILED, True, cause.reason, cause.message),
    )
    return _finish(snapshot, JobPhase.FAILED, cause.message, conditions, cause.reason)


def plan_finished(snapshot: JobSnapshot, phase: JobPhase) -> Decision:
    """Decide on a finished job: stop the remaining processes, keep their logs until the job is deleted."""
    completed = snapshot.previous_status.completion_time or snapshot.timestamp
    stop, deletions, requeue_at = _plan_shutdown(snapshot, completed, _failure_reason(snapshot))
    ttl = number(get_path(snapshot.observed.job, "spec", "lifecycle", "ttlSecondsAfterFinished"))
    is_expired = False
    # MultiKueue deletes its copy of a job, once it has read the status.
    if ttl is not None and not snapshot.prebuilt_workload:
        try:
            expires_at = completed + timedelta(seconds=max(0.0, ttl))
        except OverflowError:
            expires_at = None
        if expires_at is not None:
            is_expired = expires_at <= snapshot.now
            requeue_at = requeue_at if is_expired else [*requeue_at, expires_at]
    return Decision(
        phase,
        snapshot.previous_status.message or "",
        status_changes={
            "completion_time": completed,
            "roles": _role_statuses(snapshot),
            "rollout_replicas": _live_rollouts(snapshot),
        },
        delete=tuple(deletions),
        stop=tuple(stop),
        workload_changes=tuple(finish_workloads(snapshot, succeeded=phase is JobPhase.SUCCEEDED)),
        delete_job=is_expired and not snapshot.is_deleting,
        requeue_at=tuple(requeue_at),
    )


def _finish(
    snapshot: JobSnapshot,
    phase: JobPhase,
    message: str,
    conditions: tuple[DesiredCondition, ...],
    reason: str,
    **changes: Any,
) -> Decision:
    stop, deletions, requeue_at = _plan_shutdown(snapshot, snapshot.now, reason)
    suspended = (
        ()
        if condition_of(snapshot.previous_status, SUSPENDED) is None
        else (desired_condition(SUSPENDED, False, reason),)
    )
    return Decision(
        phase,
        message,
        conditions=(*conditions, *suspended, desired_condition(READY, phase is JobPhase.SUCCEEDED, "Ended")),
        status_changes={
            "completion_time": snapshot.timestamp,
            "start_time": snapshot.previous_status.start_time,
            "active_since": None,
            "starting_since": None,
            "active_seconds": active_seconds(snapshot.previous_status, snapshot.timestamp),
            "roles": _role_statuses(snapshot),
            "rollout_replicas": _live_rollouts(snapshot),
            **changes,
        },
        delete=tuple(deletions),
        stop=tuple(stop),
        requeue_at=tuple(requeue_at),
    )


def _plan_shutdown(
    snapshot: JobSnapshot, completed: datetime, reason: str
) -> tuple[list[PodStop], list[PodDeletion], list[datetime]]:
    overdue, requeue_at = force_overdue_deletions(snapshot)
    alive = [pod for pod in live_pods(snapshot.pods) if not pod_state.is_terminating(pod)]
    driver = [pod for pod in live_pods(snapshot.pods_in_group(names.DRIVER)) if pod_state.was_scheduled(pod)]
    if reason == DEADLINE and driver:
        # The driver stops first: it needs the other processes to save a checkpoint.
        driver_deadline = completed + timedelta(seconds=grace_seconds(snapshot)) + _AFTER_GRACE
        if snapshot.now < driver_deadline:
            alive, requeue_at = [pod for pod in alive if pod in driver], [*requeue_at, driver_deadline]
    stop = [
        PodStop(pod.name, pod.uid)
        for pod in alive
        if pod_state.was_scheduled(pod) and (pod.active_deadline_seconds or math.inf) > 1
    ]
    never_started = delete_pods(pod for pod in alive if not pod_state.was_scheduled(pod))
    return stop, [*overdue, *never_started], requeue_at


def grace_seconds(snapshot: JobSnapshot) -> float:
    """Return lifecycle.gracePeriodSeconds, also when the rest of the spec is invalid."""
    seconds = number(get_path(snapshot.observed.job, "spec", "lifecycle", "gracePeriodSeconds"))
    return min(seconds, 86_400.0) if seconds is not None and seconds > 0 else _GRACE_SECONDS


def _failure_reason(snapshot: JobSnapshot) -> str:
    condition = condition_of(snapshot.previous_status, FAILED)
    return condition.reason if condition is not None and condition.status is ConditionStatus.TRUE else ""


def _role_statuses(snapshot: JobSnapshot) -> list[RoleStatus] | None:
    return [
        role.model_copy(
            update={"ready": sum(pod_state.is_ready(pod) for pod in snapshot.first_rank_pods(role.name))}
        )
        for role in snapshot.previous_status.roles or []
    ] or None


def _live_rollouts(snapshot: JobSnapshot) -> int | None:
    if snapshot.previous_status.rollout_replicas is None:
        return None
    return len(live_pods(snapshot.first_rank_pods(generation_role(snapshot.processes))))
