"""Changes of the fields that may change while a job is suspended, and that its processes read."""

from typing import Any

#: A value of every field that the processes read and that may change, other than its default.
CHANGES: dict[str, Any] = {
    "spec.rollout.minReplicas": 3,
    "spec.checkpoint.everySteps": 7,
    "spec.checkpoint.keep": 5,
    "spec.checkpoint.keepBest": {"metric": "val/reward/mean"},
    "spec.checkpoint.keepEverySteps": 100,
    "spec.checkpoint.recordBatches": True,
    "spec.lifecycle.gracePeriodSeconds": 90.0,
    "spec.lifecycle.maxFailedGroups": 3,
}
