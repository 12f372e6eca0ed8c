"""Changes of a job's Workloads: creation, deletion, and the reports of their owner."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kubealign.process_settings import Role
from kubealign_operator.kube_views import pod_state
from kubealign_operator.kube_views.kueue_view import WorkloadView
from kubealign_operator.manifests.workload import digest_of
from kubealign_operator.planner import pod_events, start_order
from kubealign_operator.planner.admission.job_admission import JobAdmission, is_admitted, own_workloads
from kubealign_operator.planner.admission.workload_status import (
    FINISHED,
    PODS_READY,
    finish,
    give_back,
    release_reservation,
    report_pods_ready,
)
from kubealign_operator.planner.plan import PodDeletion, WorkloadChange, WorkloadDeletion
from kubealign_operator.planner.pod_actions import delete_pods
from kubealign_operator.planner.process_units import ProcessUnit
from kubealign_operator.planner.snapshot import JobSnapshot, live_pods

#: Rollout workers beyond the admitted ones that ask Kueue for quota at the same time.
MAX_WAITING_WORKERS = 8


@dataclass
class WorkloadActions:
    """Changes of Workloads and of the pods that they no longer cover.

    Attributes:
        create: Manifests of missing Workloads.
        delete_pods: Pods of rollout workers that Kueue has evicted.
        unadmitted: Names of rollout workers that must not start.
    """

    changes: list[WorkloadChange] = field(default_factory=list)
    create: list[dict[str, Any]] = field(default_factory=list)
    delete_pods: list[PodDeletion] = field(default_factory=list)
    unadmitted: set[str] = field(default_factory=set)


def delete_workloads(snapshot: JobSnapshot) -> list[WorkloadChange]:
    """Delete all Workloads of a job that has no pods and wants none, but for one of MultiKueue."""
    return [
        _deletion(view)
        for view in own_workloads(snapshot)
        if not view.is_deleting and view.name != snapshot.prebuilt_workload
    ]


def finish_workloads(snapshot: JobSnapshot, *, succeeded: bool) -> list[WorkloadChange]:
    """Finish the Workloads of a finished job once none of its processes runs."""
    if live_pods(snapshot.pods):
        return []
    message = snapshot.previous_status.message or ""
    return [
        finish(view, succeeded, message, snapshot.timestamp)
        for view in own_workloads(snapshot)
        if not view.is_true(FINISHED) and not view.is_deleting
    ]


def request_admission(snapshot: JobSnapshot, admission: JobAdmission) -> WorkloadActions:
    """Ask Kueue for the quota of a job without pods, with a new Workload where the existing one is of no use
    any more.
    """
    actions = WorkloadActions()
    for view in admission.workers.values():
        if not view.is_deleting:
            actions.changes.append(_deletion(view))
    main = admission.main
    if admission.prebuilt:
        if main is not None and main.must_be_released and main.owner_uid == snapshot.uid:
            actions.changes.append(release_reservation(main, snapshot.timestamp))
    elif main is None:
        if not admission.problem:
            actions.create.append(dict(admission.manifest))
    elif not main.is_deleting and must_be_replaced(admission, main):
        actions.changes.append(_deletion(main))
    elif main.must_be_released:
        actions.changes.append(release_reservation(main, snapshot.timestamp))
    return actions


def maintain_workloads(
    snapshot: JobSnapshot,
    admission: JobAdmission,
    units: Sequence[ProcessUnit],
    *,
    running: bool,
) -> WorkloadActions:
    """Keep the Workloads of an admitted job in line with its rollout workers.

    Args:
        running: Everything that the driver needs is ready, or was.
    """
    actions = WorkloadActions()
    main = admission.main
    if main is not None and running and not main.is_true(PODS_READY):
        actions.changes.append(report_pods_ready(main, snapshot.timestamp))
    workers = [unit for unit in units if unit.group == Role.ROLLOUT]
    covered = 0 if not workers else admission.covered_workers(len(workers[0].members))
    for index, unit in enumerate(workers):
        if index >= covered:
            _maintain_worker(snapshot, admission, unit, actions)
    _remove_surplus(snapshot, admission, workers, covered, actions)
    return actions


def unadmitted_scaled_workers(admission: JobAdmission | None, units: Sequence[ProcessUnit]) -> set[str]:
    """Return the environment workers and scorers beyond the quota, which were added after the admission of
    the job.

    They wait until the job is admitted anew, after it was suspended. Rollout workers ask for quota of their
    own instead.
    """
    main = None if admission is None else admission.main
    if admission is None or main is None or not admission.sets:
        return set()
    uncovered: set[str] = set()
    for pod_set in admission.sets:
        members = [unit for unit in units if unit.group in pod_set.groups]
        left = main.pod_counts.get(pod_set.name, 0)
        left -= sum(len(unit.members) for unit in members if not _is_scaled(unit))
        # Workers of several groups may share a set: those that run keep their quota.
        for unit in sorted(filter(_is_scaled, members), key=_claim_order):
            left -= len(unit.members)
            if left < 0:
                uncovered.add(unit.name)
    return uncovered


def _is_scaled(unit: ProcessUnit) -> bool:
    """Return True for environment workers and scorers."""
    return unit.members[0].process.elastic and unit.group != Role.ROLLOUT


def _claim_order(unit: ProcessUnit) -> tuple[bool, int]:
    return not unit.current_pods, unit.members[0].process.replica


def _maintain_worker(
    snapshot: JobSnapshot, admission: JobAdmission, unit: ProcessUnit, actions: WorkloadActions
) -> None:
    """Keep the Workload of a rollout worker that the job's own Workload does not cover."""
    view = admission.workers.get(unit.name)
    if view is not None and is_admitted(view):
        if start_order.is_complete(unit) and not view.is_true(PODS_READY):
            actions.changes.append(report_pods_ready(view, snapshot.timestamp))
        return
    actions.unadmitted.add(unit.name)
    pods = [pod for _, pod in (*unit.current_pods, *unit.stale_pods)]
    actions.delete_pods += delete_pods(pods, cause=pod_events.unadmitted(unit.name))
    if any(not pod_state.is_leftover(pod) for pod in pods):
        return
    if view is None:
        # MultiKueue knows one Workload for each job.
        can_ask = not admission.problem and not admission.prebuilt
        if can_ask and len(actions.unadmitted) <= MAX_WAITING_WORKERS:
            members = [member.process for member in unit.members]
            actions.create.append(dict(admission.worker_manifest(unit.name, members)))
    elif view.is_deleting:
        return
    elif view.is_true(FINISHED):
        actions.changes.append(_deletion(view))
    elif view.must_be_released:
        actions.changes.append(release_reservation(view, snapshot.timestamp))


def _remove_surplus(
    snapshot: JobSnapshot,
    admission: JobAdmission,
    workers: Sequence[ProcessUnit],
    covered: int,
    actions: WorkloadActions,
) -> None:
    """Give back the quota of rollout workers that the job no longer has, once their pods have ended."""
    own = {unit.name for unit in workers[covered:]}
    processes = {member.process.name for unit in workers for member in unit.members}
    present = {snapshot.process_name(pod) for pod in snapshot.remaining_pods}
    for name, view in admission.workers.items():
        if name not in own and not view.is_deleting and not _has_pods(name, present):
            actions.changes.append(_deletion(view))
    main = admission.main
    if main is None or not workers or len(workers) >= covered:
        return
    if not any(name.startswith(f"{Role.ROLLOUT}-") for name in present - processes):
        pods_per_worker = len(workers[0].members)
        pod_set = admission.rollout_set
        requested = main.pod_counts.get(pod_set, 0)
        actions.changes.append(give_back(main, pod_set, requested - len(workers) * pods_per_worker))


def _has_pods(unit: str, processes: set[str]) -> bool:
    return any(name == unit or name.startswith(f"{unit}-r") for name in processes)


def must_be_replaced(admission: JobAdmission, main: WorkloadView) -> bool:
    """Return True if Kueue should get a new Workload: it has finished, or the job needs other quota now."""
    if main.is_true(FINISHED):
        return True
    if main.has_reservation and not main.must_be_released:
        return False
    # Kueue queues a Workload that it has deactivated itself never again, even if it is active again.
    is_abandoned = main.is_active and not main.has_reservation and main.was_deactivated_by_kueue
    is_outdated = bool(admission.manifest) and main.digest != digest_of(admission.manifest)
    return is_abandoned or is_outdated or bool(main.reclaimable)


def _deletion(view: WorkloadView) -> WorkloadDeletion:
    return WorkloadDeletion(view.name, view.uid)
