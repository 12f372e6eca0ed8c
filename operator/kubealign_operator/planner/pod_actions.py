"""Plans which pods are created and deleted to keep the processes of a job running."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from kubealign.roles import PREPARE
from kubealign_operator import names
from kubealign_operator.kube_views import pod_state
from kubealign_operator.kube_views.observed_job import PodView
from kubealign_operator.planner import pod_events
from kubealign_operator.planner.failure_reasons import lost_pod
from kubealign_operator.planner.kept_pods import has_kept_log
from kubealign_operator.planner.plan import PlannedEvent, PodDeletion
from kubealign_operator.planner.process_units import ProcessUnit, UnitMember
from kubealign_operator.planner.restart_policy import retain_until
from kubealign_operator.planner.snapshot import JobSnapshot, live_pods

#: The index of a worker, in the name of each of its processes.
_WORKER_INDEX = re.compile(r"-(\d+)(?:-r\d+)?$", re.ASCII)
#: The remaining ranks of a broken gang hang in a collective: a longer grace period is of no use.
_GANG_GRACE_SECONDS = 1
#: Pods that one reconcile creates at most, as of the Job controller: the next reconcile creates the others.
MAX_CREATIONS = 500
#: Ended pods of one process that finalizers may keep before its next pod waits for their removal.
MAX_LEFTOVERS = 3


@dataclass
class PodActions:
    """Pods to delete and to create.

    Args:
        create: Members whose pods are missing, each with the attempt of its unit.
        events: Events about pods that are replaced.
    """

    delete: list[PodDeletion] = field(default_factory=list)
    create: list[tuple[UnitMember, int]] = field(default_factory=list)
    requeue_at: list[datetime] = field(default_factory=list)
    events: list[PlannedEvent] = field(default_factory=list)


def plan_pod_actions(
    snapshot: JobSnapshot,
    units: Sequence[ProcessUnit],
    startable: frozenset[str],
    causes: Mapping[str, PlannedEvent],
) -> PodActions:
    """Plan the pod actions.

    Args:
        startable: Names of the units that may start now.
        causes: Event of each unit whose pods are replaced from now on.
    """
    actions = PodActions()
    overdue, requeue_at = force_overdue_deletions(snapshot)
    actions.delete += overdue
    actions.requeue_at += requeue_at
    for unit in units:
        cause = causes.get(unit.name)
        if cause is not None:
            actions.events += [pod_events.about(pod, cause) for _, pod in unit.stale_pods]
        _remove_stale_pods(snapshot, unit, actions)
        if unit.name in startable and not unit.stale_pods and not has_too_many_leftovers(unit):
            actions.create += [
                (member, unit.attempt)
                for member in unit.missing_members
                if unit.pod_name(member) not in snapshot.taken_names
            ]
    actions.create = _limit_creations(actions.create)
    for pod in _surplus_pods(snapshot):
        actions.delete += delete_pods([pod], cause=pod_events.scaled_down(snapshot.process_name(pod)))
    return actions


def has_too_many_leftovers(unit: ProcessUnit) -> bool:
    """Return True when finalizers keep so many pods of a process that its successor waits for them.

    A finalizer that nobody removes would otherwise keep one more pod for each restart.
    """
    return any(len(member.leftovers) >= MAX_LEFTOVERS for member in unit.members)


def _limit_creations(create: list[tuple[UnitMember, int]]) -> list[tuple[UnitMember, int]]:
    """Return the first creations of each group, `MAX_CREATIONS` at most: no group waits for a larger one."""
    if len(create) <= MAX_CREATIONS:
        return create
    seen: Counter[str] = Counter()
    positions = []
    for member, _ in create:
        positions.append(seen[member.process.group])
        seen[member.process.group] += 1
    earliest = sorted(range(len(create)), key=positions.__getitem__)[:MAX_CREATIONS]
    return [create[index] for index in sorted(earliest)]


def delete_pods(
    pods: Iterable[PodView], grace_seconds: int | None = None, cause: PlannedEvent | None = None
) -> list[PodDeletion]:
    """Return deletions for the pods that are not being deleted already.

    Args:
        cause: Event that explains the deletions; None: that of the whole decision does.
    """
    return [
        PodDeletion(pod.name, pod.uid, grace_seconds, cause)
        for pod in pods
        if not pod_state.is_terminating(pod)
    ]


def delete_all_pods(
    snapshot: JobSnapshot, pods: Sequence[PodView] | None = None
) -> tuple[list[PodDeletion], list[datetime]]:
    """Delete the driver, which needs the other pods to save a checkpoint, and after its end all others.

    Args:
        pods: Pods to delete; None: all pods of the job.

    Returns:
        The deletions, and the times at which further ones become overdue.
    """
    overdue, requeue_at = force_overdue_deletions(snapshot)
    unwanted = snapshot.pods if pods is None else pods
    driver = [pod for pod in live_pods(snapshot.pods_in_group(names.DRIVER)) if pod in unwanted]
    return [*overdue, *delete_pods(driver or unwanted)], requeue_at


def force_overdue_deletions(snapshot: JobSnapshot) -> tuple[list[PodDeletion], list[datetime]]:
    """Force the deletion of pods whose nodes have not confirmed it in time, if the job allows it.

    Otherwise the operator waits: a process may still run on a node that is only cut off. Kubernetes' own
    garbage collector removes the pod once its Node object is gone or has the taint out-of-service, so the
    operator needs no right to read nodes. A pod that only finalizers keep is left to them: another deletion
    would change nothing.

    Returns:
        The forced deletions, and the times at which the remaining deletions become overdue.
    """
    terminating = [pod for pod in snapshot.pods if pod.deletion_at is not None]
    overdue = [
        pod for pod in terminating if pod_state.is_lost(pod, snapshot.now) and pod.deletion_grace_seconds != 0
    ]
    requeue_at = [
        pod.deletion_at + pod_state.DELETION_TIMEOUT
        for pod in terminating
        if pod.deletion_at is not None and not pod_state.is_deletion_overdue(pod, snapshot.now)
    ]
    if not snapshot.force_deletes_lost_pods:
        return [], requeue_at
    return [_forced_deletion(snapshot, pod) for pod in overdue], requeue_at


def _forced_deletion(snapshot: JobSnapshot, pod: PodView) -> PodDeletion:
    reason = lost_pod(snapshot.process_name(pod), pod, is_forced=True)
    return PodDeletion(pod.name, pod.uid, 0, pod_events.lost(reason))


def _remove_stale_pods(snapshot: JobSnapshot, unit: ProcessUnit, actions: PodActions) -> None:
    """Delete the pods of earlier attempts, finished ones only after the unit's restart backoff.

    The last failed pod of a process is never deleted: it is kept for its log once the backoff is over.
    """
    stale = [pod for _, pod in unit.stale_pods]
    newly_failed = {pod.name for pod in stale if has_kept_log(pod)}
    for pod in _superseded_pods(unit, newly_failed):
        actions.delete += delete_pods([pod], cause=pod_events.failed_again(snapshot.process_name(pod)))
    for pod in stale:
        retained_until = retain_until(unit.attempt, pod)
        if retained_until is not None and retained_until > snapshot.now and not pod_state.is_terminating(pod):
            actions.requeue_at.append(retained_until)
        elif pod.name in newly_failed:
            # The next reconcile finds the new attempt in the status, and the pod no longer counts.
            actions.requeue_at.append(snapshot.now)
        else:
            is_orphaned_rank = unit.is_gang and not pod_state.has_terminated(pod)
            grace_seconds = _GANG_GRACE_SECONDS if is_orphaned_rank else None
            actions.delete += delete_pods([pod], grace_seconds, pod_events.superseded(unit, pod))


def _superseded_pods(unit: ProcessUnit, newly_failed: Collection[str]) -> list[PodView]:
    """Return the kept pods of processes that have failed again since.

    Args:
        newly_failed: Names of the pods that are about to be kept.
    """
    superseded: list[PodView] = []
    for member in unit.members:
        has_newer = member.pod is not None and member.pod.name in newly_failed
        superseded += member.kept_pods if has_newer else member.kept_pods[:-1]
    return superseded


def _surplus_pods(snapshot: JobSnapshot) -> list[PodView]:
    """Return the pods of processes that the job no longer has, highest worker index first."""
    expected = {PREPARE, *(process.name for process in snapshot.processes)}
    return sorted(
        (pod for pod in snapshot.pods if snapshot.process_name(pod) not in expected),
        key=lambda pod: (_worker_index(snapshot.process_name(pod)), pod.name),
        reverse=True,
    )


def _worker_index(process: str) -> int:
    match = _WORKER_INDEX.search(process)
    return int(match[1]) if match else -1
