"""Eviction of a trainer's or critic's pod, such as by the drain of its node: the driver saves a checkpoint
while the pod still runs.

The pod's preStop hook keeps its processes running until the driver has ended
(`kubealign_services.runtime.process.wait_for_driver`), at most for the pod's grace period.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from kubealign.roles import Process
from kubealign.spec.status import JobPhase
from kubealign_operator import names
from kubealign_operator.kube_views import pod_state
from kubealign_operator.kube_views.observed_job import PodView
from kubealign_operator.planner.failure_reasons import deletion_reason
from kubealign_operator.planner.plan import PREPARED, READY, Decision, desired_condition
from kubealign_operator.planner.pod_actions import delete_pods, force_overdue_deletions
from kubealign_operator.planner.process_units import ProcessUnit
from kubealign_operator.planner.snapshot import JobSnapshot, live_pods

#: The node of such a pod does not answer: nothing could be saved there.
_LOST_NODE = "DeletionByTaintManager"


def draining_pods(snapshot: JobSnapshot, units: Sequence[ProcessUnit]) -> list[tuple[Process, PodView]]:
    """Return the pods without which the driver could not save a checkpoint, and which are being deleted but
    still run; empty if no driver runs.

    They are not the operator's own deletions: these concern pods of earlier attempts, and jobs whose driver
    has ended.
    """
    if not live_pods(snapshot.pods_in_group(names.DRIVER)):
        return []
    return [
        (process, pod)
        for unit in units
        for process, pod in unit.current_pods
        if process.role_spec.trains and _may_save(snapshot, pod)
    ]


def plan_draining(
    snapshot: JobSnapshot,
    draining: Sequence[tuple[Process, PodView]],
    status_changes: Mapping[str, Any],
) -> Decision:
    """Decide on a running job whose trainer or critic is about to lose a pod: end the driver, which saves.

    Everything else stays until the driver has ended. No restart is counted.

    Args:
        draining: The pods that are being deleted, one at least.
        status_changes: Status fields of an active job.
    """
    overdue, requeue_at = force_overdue_deletions(snapshot)
    driver = live_pods(snapshot.pods_in_group(names.DRIVER))
    process, pod = draining[0]
    reason = deletion_reason(process.name, pod)
    message = f"{reason.message}: the driver saves a checkpoint"
    return Decision(
        JobPhase.RUNNING,
        message,
        conditions=(
            desired_condition(PREPARED, True, "Prepared"),
            desired_condition(READY, False, reason.reason, message),
        ),
        status_changes=status_changes,
        delete=(*overdue, *delete_pods(driver)),
        requeue_at=(*requeue_at, *(each.deletion_at for _, each in draining if each.deletion_at)),
    )


def _may_save(snapshot: JobSnapshot, pod: PodView) -> bool:
    """Return True for a pod that is being deleted, runs, and has time left."""
    if pod.deletion_at is None or pod_state.has_terminated(pod) or snapshot.now >= pod.deletion_at:
        return False
    disruption = pod_state.condition_of(pod, "DisruptionTarget")
    is_lost = disruption is not None and disruption.reason == _LOST_NODE
    return pod_state.has_run(pod) and bool(pod.deletion_grace_seconds) and not is_lost
