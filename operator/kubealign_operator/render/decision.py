"""What a phase decides: the parts of the answer that differ from phase to phase."""

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
    """What a condition says from now on; its times come from what it said before."""

    type: str
    status: ConditionStatus
    reason: str
    message: str = ""


def said(kind: str, so: bool, reason: str, message: str = "") -> Said:
    """That it is so, or is not."""
    return Said(kind, ConditionStatus.TRUE if so else ConditionStatus.FALSE, reason, message)


@dataclass(frozen=True)
class Decision:
    """`changes`: fields of the status by their Python names; the others stay as they were. `wake`: when time
    alone changes the answer."""

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
