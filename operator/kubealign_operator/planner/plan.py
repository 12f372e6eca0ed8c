"""The plan of one reconcile: the status to write and the objects to create, stop and delete."""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

from kubealign.process_settings import Role


@dataclass(frozen=True)
class CredentialsRequest:
    """A missing Secret. The executor generates the keys, so that no key is part of a plan."""

    #: Name of the Secret.
    name: str
    #: Roles that get a certificate, as ROLE.pem and ROLE-key.pem.
    roles: tuple[Role, ...]
    #: Subject alternative names of the certificates: DNS names and addresses.
    hosts: tuple[str, ...]
    lifetime: timedelta
    #: metadata of the Secret: name, namespace, labels, ownerReferences.
    metadata: dict[str, Any]


@dataclass(frozen=True)
class PodDeletion:
    """A pod to delete. `uid` is a precondition: a newer pod of the same name is left alone."""

    name: str
    uid: str
    #: Grace period in seconds. None: the pod's own; 0: force deletion, without waiting for the node.
    grace_seconds: int | None = None


@dataclass(frozen=True)
class PodStop:
    """A pod to stop but keep for its logs: spec.activeDeadlineSeconds is patched to 1."""

    name: str
    uid: str


class KubeEventType(StrEnum):
    """Type of a Kubernetes event."""

    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True)
class PlannedEvent:
    """A Kubernetes event about the job. `reason` is one CamelCase word."""

    type: KubeEventType
    reason: str
    message: str


@dataclass(frozen=True)
class ReconcilePlan:
    """The plan of one reconcile. The fields are executed in order, each after the previous one succeeded."""

    #: The complete new status: a field that is absent here is removed.
    status: dict[str, Any]
    #: Credentials to create before anything in `create`.
    credentials: CredentialsRequest | None = None
    delete: tuple[PodDeletion, ...] = ()
    stop: tuple[PodStop, ...] = ()
    #: Complete manifests of the missing objects, in creation order.
    create: tuple[dict[str, Any], ...] = ()
    #: The time to live after the job's end has expired: delete the job.
    delete_job: bool = False
    #: Events to send once the new status is written.
    events: tuple[PlannedEvent, ...] = ()
    #: Seconds until the plan changes by time alone; None: never.
    requeue_after: float | None = None
