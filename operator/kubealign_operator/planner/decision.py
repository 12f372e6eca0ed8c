"""The part of a plan that differs from phase to phase."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from kubealign.spec.status import ConditionStatus, JobPhase
from kubealign_operator.planner.plan import CredentialsRequest, PlannedEvent, PodDeletion, PodStop

ACCEPTED = "Accepted"
DEPENDENCIES_READY = "DependenciesReady"
PREPARED = "Prepared"
READY = "Ready"
SUSPENDED = "Suspended"
COMPLETE = "Complete"
FAILED = "Failed"


@dataclass(frozen=True)
class DesiredCondition:
    """The desired state of a condition. lastTransitionTime is kept when the status is unchanged."""

    type: str
    status: ConditionStatus
    reason: str
    message: str = ""


def desired_condition(kind: str, is_true: bool, reason: str, message: str = "") -> DesiredCondition:
    """Build a condition that is True or False."""
    return DesiredCondition(kind, ConditionStatus.TRUE if is_true else ConditionStatus.FALSE, reason, message)


@dataclass(frozen=True)
class Decision:
    """The decision of one phase.

    Args:
        status_changes: Changed status fields by Python name; all other fields stay as they were.
        requeue_at: Times at which the decision changes by time alone.
    """

    phase: JobPhase
    message: str = ""
    conditions: tuple[DesiredCondition, ...] = ()
    status_changes: Mapping[str, Any] = field(default_factory=dict)
    credentials: CredentialsRequest | None = None
    delete: tuple[PodDeletion, ...] = ()
    stop: tuple[PodStop, ...] = ()
    create: tuple[dict[str, Any], ...] = ()
    delete_job: bool = False
    events: tuple[PlannedEvent, ...] = ()
    requeue_at: tuple[datetime, ...] = ()
