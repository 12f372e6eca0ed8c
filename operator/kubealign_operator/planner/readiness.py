"""Readiness of a job's processes, and what blocks those that are not ready."""

from collections.abc import Mapping, Sequence
from typing import Any

from kubealign.roles import PREPARE, generation_role
from kubealign.spec.job import AlignmentJob
from kubealign.spec.status import RoleStatus
from kubealign_operator import names
from kubealign_operator.kube_views import pod_state
from kubealign_operator.kube_views.observed_job import PodView
from kubealign_operator.manifests import pod_layout
from kubealign_operator.planner import failure_reasons
from kubealign_operator.planner.failure_reasons import FailureReason
from kubealign_operator.planner.pod_actions import has_too_many_leftovers
from kubealign_operator.planner.process_units import ProcessUnit, UnitMember
from kubealign_operator.planner.restart_policy import UnitRestart, is_exempt
from kubealign_operator.planner.snapshot import JobSnapshot, live_pods
from kubealign_operator.planner.start_order import is_complete

#: Reasons by severity: the first one found is shown in the status.
_SEVERITY_ORDER = (
    # First: nothing but a person, or the controller of the finalizer, ends it.
    "Finalizer",
    "OutOfMemory",
    "StorageFull",
    "Crashed",
    "Evicted",
    "NodeLost",
    "Lost",
    "ImagePull",
    "BadConfiguration",
    "Refused",
    "Unschedulable",
    "NameTaken",
    "Disrupted",
    "SlowStart",
    "Queued",
    "Ending",
)
_MAX_NAMED = 3


def role_statuses(units: Sequence[ProcessUnit], prepared: bool) -> list[RoleStatus]:
    """Return the status of each group, in the order in which the groups start."""
    groups: dict[str, tuple[int, int]] = {}
    for unit in units:
        desired, ready = groups.get(unit.group, (0, 0))
        unit_desired, unit_ready = unit.replica_counts
        is_done = prepared and unit.name == PREPARE
        groups[unit.group] = desired + unit_desired, ready + (unit_desired if is_done else unit_ready)
    return [RoleStatus(name=name, replicas=desired, ready=ready) for name, (desired, ready) in groups.items()]


def rollout_status(snapshot: JobSnapshot, job: AlignmentJob) -> Mapping[str, Any]:
    """Return the status fields of the rollout workers, for kubectl scale; empty: the job has none."""
    if not job.spec.samples:
        return {}
    group = generation_role(snapshot.processes)
    pods = [
        view
        for view in snapshot.first_rank_pods(group)
        if view.name not in snapshot.kept_pods and not pod_state.is_terminating(view)
    ]
    is_multi_pod = any(
        process.group == group and process.elastic and process.world_size > 1
        for process in snapshot.processes
    )
    selector = names.rollout_selector(snapshot.uid, group, several=is_multi_pod)
    return {"rollout_replicas": sum(_worker_count(pod) for pod in pods), "selector": selector}


def _worker_count(pod: PodView) -> int:
    """Return the number of rollout workers that begin in a pod: each rank of a trainer may be one."""
    return 1 if names.WORKER_RANK_LABEL in pod.labels else pod_layout.pod_size(pod)


def blocking_reason(
    snapshot: JobSnapshot, units: Sequence[ProcessUnit], restarts: int, budget: int
) -> FailureReason | None:
    """Return the most severe reason why a process is not ready; None: nothing but time."""
    reasons = [
        candidate
        for unit in units
        for member in unit.members
        for candidate in _member_reasons(snapshot, unit, member, restarts, budget)
    ]
    return min(reasons, key=lambda candidate: _severity(candidate.reason), default=None)


def pending_processes(units: Sequence[ProcessUnit], startable: frozenset[str]) -> str:
    """Return a sentence that names the processes the job waits for; empty: none."""
    pending = [
        member.process.name
        for unit in units
        if unit.name in startable and not is_complete(unit)
        for member in unit.members
        if member.pod is None or unit.runs_to_completion or not pod_state.is_ready(member.pod)
    ]
    if not pending:
        return ""
    if pending == [PREPARE]:
        return "waits for prepare to finish"
    listed = ", ".join(pending[:_MAX_NAMED]) + (
        f" and {len(pending) - _MAX_NAMED} more" if len(pending) > _MAX_NAMED else ""
    )
    return f"waits for {listed} to be ready"


def _member_reasons(
    snapshot: JobSnapshot, unit: ProcessUnit, member: UnitMember, restarts: int, budget: int
) -> list[FailureReason]:
    name, pod = member.process.name, member.pod
    if pod is None and has_too_many_leftovers(unit) and member.leftovers:
        return [failure_reasons.successor_blocked(name, member.leftovers[0])]
    if pod is None:
        pod_name = unit.pod_name(member)
        if pod_name in snapshot.taken_names:
            return [failure_reasons.pod_name_conflict(name, pod_name)]
        error = snapshot.observed.create_errors.get(pod_name)
        return [] if error is None else [failure_reasons.create_refused(name, error)]
    found_reason = failure_reasons.reason_not_ready(name, pod, snapshot.now, unit.runs_to_completion)
    if pod_state.is_lost(pod, snapshot.now):
        found_reason = failure_reasons.lost_pod(name, pod, snapshot.force_deletes_lost_pods)
    if found_reason is None:
        return []
    if pod_state.has_terminated(pod) and not pod_state.is_terminating(pod):
        return [
            FailureReason(
                found_reason.reason,
                UnitRestart(unit.name, found_reason, not is_exempt(pod)).describe(restarts, budget),
            )
        ]
    return [found_reason]


def lost_pod_reason(snapshot: JobSnapshot) -> FailureReason | None:
    """Return why the first lost pod of the job is still there; None: no pod is lost."""
    for pod in snapshot.pods:
        if pod_state.is_lost(pod, snapshot.now):
            return failure_reasons.lost_pod(snapshot.process_name(pod), pod, snapshot.force_deletes_lost_pods)
    return None


def leftover_message(snapshot: JobSnapshot) -> str:
    """Describe a pod that a finalizer keeps for long, without blocking the job; empty: there is none."""
    leftovers = [
        pod
        for pod in snapshot.pods
        if pod_state.is_leftover(pod) and pod_state.is_blocked_by_finalizers(pod, snapshot.now)
    ]
    return failure_reasons.blocking_finalizers(leftovers[0]) if leftovers else ""


def removal_progress(snapshot: JobSnapshot) -> str:
    """Return how far the removal of all pods, the driver's first, is; in words that follow a colon."""
    if live_pods(snapshot.pods_in_group(names.DRIVER)) and lost_pod_reason(snapshot) is None:
        return "the driver saves a checkpoint"
    return removal_obstacle(snapshot)


def removal_obstacle(snapshot: JobSnapshot) -> str:
    """Return what the removal of all pods waits for, in words that follow a colon."""
    lost = lost_pod_reason(snapshot)
    if lost is not None:
        return lost.message
    blocked = [
        pod for pod in snapshot.remaining_pods if pod_state.is_blocked_by_finalizers(pod, snapshot.now)
    ]
    if blocked:
        return failure_reasons.blocking_finalizers(blocked[0])
    names_of_processes = sorted({snapshot.process_name(pod) for pod in snapshot.remaining_pods})
    remaining = ", ".join(names_of_processes[:_MAX_NAMED])
    return f"waits for {remaining} to end"


def refused_object_reason(snapshot: JobSnapshot) -> FailureReason | None:
    """Return why the Service, Secret or ConfigMap could not be created: no pod works without them."""
    credentials, document = snapshot.previous_status.credentials, snapshot.previous_status.document
    for name in (
        names.credentials(snapshot.name, 1 if credentials is None else credentials.generation),
        names.config_map(snapshot.name, 1 if document is None else document.generation),
        names.peers(snapshot.name),
    ):
        error = snapshot.observed.create_errors.get(name)
        if error is not None:
            return FailureReason("Refused", f"{name} was refused: {error}")
    return None


def _severity(reason: str) -> int:
    return _SEVERITY_ORDER.index(reason) if reason in _SEVERITY_ORDER else len(_SEVERITY_ORDER)
