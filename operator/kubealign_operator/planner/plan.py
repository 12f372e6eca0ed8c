"""The plan of one reconcile, and the decision of a phase from which it is built."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from kubealign.process_settings import Role
from kubealign.spec.status import ConditionStatus, JobPhase

ACCEPTED = "Accepted"
DEPENDENCIES_READY = "DependenciesReady"
PREPARED = "Prepared"
READY = "Ready"
SUSPENDED = "Suspended"
STORAGE_FULL = "StorageFull"
#: Kueue has admitted the job; absent for a job without a queue.
ADMITTED = "Admitted"
COMPLETE = "Complete"
#: The operator works on the job's desired state. Set for every status.
RECONCILING = "Reconciling"
#: Nothing changes until a person acts. Set for every status.
STALLED = "Stalled"
FAILED = "Failed"


@dataclass(frozen=True)
class CredentialsRequest:
    """A missing Secret. The executor generates the keys, so that no key is part of a plan."""

    #: Name of the Secret.
    name: str
    #: Generation of the job's credentials, from 1.
    generation: int
    #: Roles that get a certificate, as ROLE.pem and ROLE-key.pem.
    roles: tuple[Role, ...]
    #: Subject alternative names of the certificates: DNS names and addresses.
    hosts: tuple[str, ...]
    lifetime: timedelta
    #: metadata of the Secret: name, namespace, labels, ownerReferences.
    metadata: dict[str, Any]


class KubeEventType(StrEnum):
    """Type of a Kubernetes event."""

    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True)
class PodReference:
    """The pod that an event is about."""

    name: str
    uid: str


@dataclass(frozen=True)
class PlannedEvent:
    """A Kubernetes event about the job or one of its pods. `reason` is one CamelCase word."""

    type: KubeEventType
    reason: str
    message: str
    #: None: the event is about the job.
    pod: PodReference | None = None


@dataclass(frozen=True)
class PodDeletion:
    """A pod to delete. `uid` is a precondition: a newer pod of the same name is left alone."""

    name: str
    uid: str
    #: Grace period in seconds. None: the pod's own; 0: force deletion, without waiting for the node.
    grace_seconds: int | None = None
    #: Event that explains the deletion; None: that of the whole decision does.
    cause: PlannedEvent | None = field(default=None, compare=False)


@dataclass(frozen=True)
class PodStop:
    """A pod to stop but keep for its logs: spec.activeDeadlineSeconds is patched to 1."""

    name: str
    uid: str


@dataclass(frozen=True)
class WorkloadDeletion:
    """A Kueue Workload to delete. `uid` is a precondition."""

    name: str
    uid: str


@dataclass(frozen=True)
class WorkloadPatch:
    """A merge patch of a Kueue Workload's status, valid for one resourceVersion of it."""

    name: str
    uid: str
    resource_version: str
    status: Mapping[str, Any]


@dataclass(frozen=True)
class WorkloadAdoption:
    """New owners of a Kueue Workload, valid for one resourceVersion of it."""

    name: str
    uid: str
    resource_version: str
    #: All of metadata.ownerReferences.
    owner_references: tuple[Mapping[str, Any], ...]


WorkloadChange = WorkloadDeletion | WorkloadPatch | WorkloadAdoption


@dataclass(frozen=True)
class ReconcilePlan:
    """The plan of one reconcile. The fields are executed in order, each after the previous one succeeded."""

    #: The complete new status: a field that is absent here is removed.
    status: dict[str, Any]
    #: Credentials to create before anything in `create`.
    credentials: CredentialsRequest | None = None
    delete: tuple[PodDeletion, ...] = ()
    stop: tuple[PodStop, ...] = ()
    workload_changes: tuple[WorkloadChange, ...] = ()
    #: Complete manifests of the missing objects, in creation order.
    create: tuple[dict[str, Any], ...] = ()
    #: The time to live after the job's end has expired: delete the job.
    delete_job: bool = False
    #: Events to send once the new status is written.
    events: tuple[PlannedEvent, ...] = ()
    #: Events about pods that are replaced, deleted or stopped, to send after `events`.
    pod_events: tuple[PlannedEvent, ...] = ()
    #: Seconds until the plan changes by time alone; None: never.
    requeue_after: float | None = None


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
        pod_events: Events about pods that are replaced. Deleted and stopped pods get theirs from the plan.
        requeue_at: Times at which the decision changes by time alone.
    """

    phase: JobPhase
    message: str = ""
    conditions: tuple[DesiredCondition, ...] = ()
    status_changes: Mapping[str, Any] = field(default_factory=dict)
    credentials: CredentialsRequest | None = None
    delete: tuple[PodDeletion, ...] = ()
    stop: tuple[PodStop, ...] = ()
    workload_changes: tuple[WorkloadChange, ...] = ()
    create: tuple[dict[str, Any], ...] = ()
    delete_job: bool = False
    events: tuple[PlannedEvent, ...] = ()
    pod_events: tuple[PlannedEvent, ...] = ()
    requeue_at: tuple[datetime, ...] = ()
