"""Workloads of Kueue without any job integration: the test is their owner."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from ..behaviour import Json
from ..control_plane import ControlPlane
from .objects import GROUP, KueueObjects

_PLURAL = "workloads"
_WRITE_ATTEMPTS = 10
#: Reasons of an eviction after which Kueue queues the Workload again as soon as the owner has returned the
#: admission. After any other, Kueue waits for an event, such as the end of a back-off.
_REQUEUED_REASONS = ("Preempted", "NodeFailures")


def pod_set(name: str, count: int, requests: Mapping[str, str], *, min_count: int | None = None) -> Json:
    """Return a set of equal pods of a Workload; `requests` are those of one pod."""
    container = {"name": "main", "image": "none", "resources": {"requests": dict(requests)}}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    least = {} if min_count is None else {"minCount": min_count}
    return {"name": name, "count": count, "template": template, **least}


class Workloads:
    """Workloads of one namespace, written like their owner does, and waits for their state."""

    def __init__(self, control_plane: ControlPlane, namespace: str) -> None:
        self._objects = KueueObjects(control_plane, namespace)

    def add(
        self, name: str, queue: str, *pod_sets: Json, priority: int = 0, priority_class: str | None = None
    ) -> None:
        """Create a Workload.

        Kueue looks up the value of a priority class only when the class changes: the creator sets both."""
        spec: Json = {"queueName": queue, "priority": priority, "podSets": list(pod_sets)}
        if priority_class is not None:
            spec["priorityClassRef"] = {
                "group": GROUP,
                "kind": "WorkloadPriorityClass",
                "name": priority_class,
            }
        self._objects.create("Workload", _PLURAL, name, {"spec": spec})

    def patch(self, name: str, changes: Json) -> None:
        """Apply a merge patch to metadata and spec."""
        self._objects.patch(_PLURAL, name, changes)

    def delete(self, name: str) -> None:
        self._objects.delete(_PLURAL, name)

    def all(self) -> dict[str, Any]:
        """Return the Workloads by name."""
        return {item["metadata"]["name"]: item for item in self._objects.list_all(_PLURAL)}

    def status(self, name: str) -> Any:
        """Return the status of a Workload; {} while it has none."""
        return self._objects.get(_PLURAL, name).get("status", {})

    def condition(self, name: str, kind: str) -> Json:
        """Return a condition of a Workload; {} while it has no condition of that type."""
        conditions = self.status(name).get("conditions", [])
        return next((condition for condition in conditions if condition["type"] == kind), {})

    def is_true(self, name: str, kind: str) -> bool:
        """Return True when a Workload has a condition with the status True."""
        return bool(self.condition(name, kind).get("status") == "True")

    def pod_counts(self, name: str) -> dict[str, int]:
        """Return the admitted number of pods of each pod set; {} without an admission."""
        admission = self.status(name).get("admission") or {}
        return {entry["name"]: entry["count"] for entry in admission.get("podSetAssignments", [])}

    def flavors(self, name: str) -> dict[str, dict[str, str]]:
        """Return the assigned flavors of each pod set: pod set -> resource -> flavor."""
        admission = self.status(name).get("admission") or {}
        return {entry["name"]: entry["flavors"] for entry in admission.get("podSetAssignments", [])}

    def write_status(self, name: str, *conditions: Json, **fields: Any) -> None:
        """Add or replace conditions, and set other fields of the status; None removes a field."""
        for _ in range(_WRITE_ATTEMPTS):
            workload = self._objects.get(_PLURAL, name)
            merged = {entry["type"]: entry for entry in workload.get("status", {}).get("conditions", [])}
            for condition in conditions:
                previous = merged.get(condition["type"])
                merged[condition["type"]] = _complete(condition, previous, workload["metadata"]["generation"])
            # A merge patch replaces the list of conditions, so Kueue's changes since the read are a conflict.
            version = workload["metadata"]["resourceVersion"]
            status = {"conditions": list(merged.values()), **fields}
            if self._objects.patch_status(_PLURAL, name, version, status):
                return
        pytest.fail(f"Workload {name} changed {_WRITE_ATTEMPTS} times while its status was written")

    def finish(self, name: str, *, succeeded: bool = True) -> None:
        """Declare a Workload finished, which releases its quota."""
        reason = "Succeeded" if succeeded else "Failed"
        self.write_status(name, condition("Finished", True, reason, "The job has ended"))

    def return_admission(self, name: str) -> None:
        """Return the quota of an evicted Workload, as its owner does after the deletion of its pods."""
        evicted = self.condition(name, "Evicted")
        if evicted.get("status") != "True":
            pytest.fail(f"Workload {name} is not evicted: its condition Evicted is {evicted}")
        reason, message = evicted["reason"], evicted["message"]
        self.write_status(
            name,
            condition("Requeued", reason in _REQUEUED_REASONS, reason, message),
            condition("QuotaReserved", False, "Pending", message),
            condition("Admitted", False, "NoReservation", "The workload has no reservation"),
            admission=None,
        )

    def wait_for_condition(self, name: str, kind: str, reason: str) -> None:
        """Wait until a condition of a Workload is True for this reason."""

        def is_met() -> bool:
            current = self.condition(name, kind)
            return (current.get("status"), current.get("reason")) == ("True", reason)

        self._objects.until(is_met, f"Workload {name} to be {kind} with the reason {reason}")

    def wait_for_admission(self, name: str) -> None:
        """Wait until a Workload is admitted."""
        self._objects.until(lambda: self.is_true(name, "Admitted"), f"Workload {name} to be admitted")

    def wait_for_refusal(self, name: str, message: str) -> None:
        """Wait until Kueue has considered a Workload and written why there is no quota for it."""

        def is_met() -> bool:
            current = self.condition(name, "QuotaReserved")
            return current.get("status") == "False" and message in current["message"]

        self._objects.until(is_met, f"Workload {name} to wait with the message {message!r}")


def condition(kind: str, is_true: bool, reason: str, message: str) -> Json:
    """Return a condition for `Workloads.write_status`."""
    return {"type": kind, "status": "True" if is_true else "False", "reason": reason, "message": message}


def _complete(condition: Json, previous: Json | None, generation: int) -> Json:
    """Add the required times; that of the transition changes only with the status."""
    moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if previous is not None and previous["status"] == condition["status"]:
        moment = previous["lastTransitionTime"]
    return {**condition, "lastTransitionTime": moment, "observedGeneration": generation}
