"""The part of a plan that differs from phase to phase."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from kubealign.spec.status import ConditionStatus, JobPhase
from kubealign_operator.render.rendered import CredentialsNeed, Deletion, Event, Stop

ACCEPTED = "Accepted"
DEPENDENCIES_READY = "DependenciesReady"
PREPARED = "Prepared"
READY = "Ready"
SUSPENDED = "Suspended"
COMPLETE = "Complete"
FAILED = "Failed"


@dataclass(frozen=True)
class Said:
    """The desired state of a condition. lastTransitionTime is kept when the status is unchanged."""

    type: str
    status: ConditionStatus
    reason: str
    message: str = ""


def said(kind: str, so: bool, reason: str, message: str = "") -> Said:
    """Build a condition that is True or False."""
    return Said(kind, ConditionStatus.TRUE if so else ConditionStatus.FALSE, reason, message)


@dataclass(frozen=True)
class Decision:
    """The decision of one phase.

    Args:
        status_changes: Changed status fields by Python name; all other fields stay as they were.
        requeue_at: Times at which the decision changes by time alone.
    """

    phase: JobPhase
    message: str = ""
    conditions: tuple[Said, ...] = ()
    changes: Mapping[str, Any] = field(default_factory=dict)
    credentials: CredentialsNeed | None = None
    delete: tuple[Deletion, ...] = ()
    stop: tuple[Stop, ...] = ()
    create: tuple[dict[str, Any], ...] = ()
    delete_job: bool = False
    events: tuple[Event, ...] = ()
    wake: tuple[datetime, ...] = ()
