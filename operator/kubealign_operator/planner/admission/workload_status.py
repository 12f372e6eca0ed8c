"""Status that the owner of a Workload writes: reservation returned, pods ready, quota given back, finished.

Kueue's contract for owners, as its own job controllers keep it (pkg/controller/jobframework/reconciler.go
and pkg/workload/workload.go of Kueue 0.17).
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from kubealign_operator.kube_views.kueue_view import WorkloadView
from kubealign_operator.kube_views.lenient_json import mapping, text
from kubealign_operator.planner.plan import WorkloadPatch

#: Condition types of a Workload.
QUOTA_RESERVED = "QuotaReserved"
ADMITTED = "Admitted"
EVICTED = "Evicted"
FINISHED = "Finished"
PODS_READY = "PodsReady"
_REQUEUED = "Requeued"
#: Reason of an eviction by the operator itself.
_SUSPENDED = "JobSuspended"
#: Reasons of an eviction after which Kueue may admit the Workload again at once. For all others it sets
#: Requeued itself, when the cause has gone.
_REQUEUED_AT_ONCE = ("Preempted", "NodeFailures")
_MAX_MESSAGE_LENGTH = 32768


def release_reservation(workload: WorkloadView, now: datetime) -> WorkloadPatch:
    """Return the reservation of an evicted Workload, whose pods have ended, so that it is queued again."""
    eviction = mapping(workload.condition(EVICTED))
    reason, message = text(eviction.get("reason")) or "Evicted", text(eviction.get("message"))
    conditions = list(workload.conditions)
    requeued = reason in _REQUEUED_AT_ONCE
    changes = [
        (_REQUEUED, requeued, reason, message),
        (QUOTA_RESERVED, False, "Pending", message),
        (ADMITTED, False, "NoReservation", "The workload has no reservation"),
    ]
    if workload.condition(PODS_READY) is not None:
        changes.append((PODS_READY, False, "WaitForStart", "The pods were deleted"))
    for kind, is_true, why, text_of_it in changes:
        conditions = _with_condition(workload, conditions, kind, is_true, why, text_of_it, now)
    return _patch(workload, {"admission": None, "conditions": conditions})


def evict(workload: WorkloadView, now: datetime) -> WorkloadPatch:
    """Evict the Workload of a suspended job that runs in a worker cluster.

    MultiKueue lets the worker cluster's job end before its deletion where the Workload is evicted, but not
    where `spec.active` is false.
    """
    message = "The job is suspended"
    conditions = list(workload.conditions)
    return _patch(
        workload,
        {"conditions": _with_condition(workload, conditions, EVICTED, True, _SUSPENDED, message, now)},
    )


def was_suspended(workload: WorkloadView) -> bool:
    """Return True if the operator has evicted the Workload: Kueue queues it never again."""
    return workload.is_true(EVICTED) and mapping(workload.condition(EVICTED)).get("reason") == _SUSPENDED


def report_pods_ready(workload: WorkloadView, now: datetime) -> WorkloadPatch:
    """Report that the pods are ready, for Kueue's waitForPodsReady."""
    conditions = _with_condition(
        workload, list(workload.conditions), PODS_READY, True, "Started", "The pods are ready", now
    )
    return _patch(workload, {"conditions": conditions})


def finish(workload: WorkloadView, succeeded: bool, message: str, now: datetime) -> WorkloadPatch:
    """Report that the pods have ended for good: Kueue releases the quota."""
    reason = "Succeeded" if succeeded else "Failed"
    conditions = _with_condition(
        workload, list(workload.conditions), FINISHED, True, reason, message or reason, now
    )
    return _patch(workload, {"conditions": conditions})


def give_back(workload: WorkloadView, pod_set: str, count: int) -> WorkloadPatch:
    """Give back the quota of pods that are no longer needed.

    Args:
        count: Number of the pods in the Workload's spec that are not needed any more, in total.
    """
    reclaimable = {**workload.reclaimable, pod_set: count}
    entries = [{"name": name, "count": number} for name, number in reclaimable.items()]
    return _patch(workload, {"reclaimablePods": entries})


def _patch(workload: WorkloadView, status: Mapping[str, Any]) -> WorkloadPatch:
    return WorkloadPatch(workload.name, workload.uid, workload.resource_version, dict(status))


def _with_condition(
    workload: WorkloadView,
    conditions: list[Mapping[str, Any]],
    kind: str,
    is_true: bool,
    reason: str,
    message: str,
    now: datetime,
) -> list[Mapping[str, Any]]:
    """Return the conditions with this one set. Its transition time changes only with its status."""
    status = "True" if is_true else "False"
    before = next((item for item in conditions if item.get("type") == kind), {})
    is_same = before.get("status") == status and before.get("lastTransitionTime")
    condition = {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message[:_MAX_MESSAGE_LENGTH],
        "lastTransitionTime": before["lastTransitionTime"] if is_same else now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "observedGeneration": workload.generation,
    }
    if condition["observedGeneration"] is None:
        del condition["observedGeneration"]
    if not before:
        return [*conditions, condition]
    return [condition if item is before else item for item in conditions]
