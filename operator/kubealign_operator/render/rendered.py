"""What should be done about a job: the answer of `render`."""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

from kubealign.process import Role


@dataclass(frozen=True)
class CredentialsNeed:
    """A Secret that is wanted and not there. Who acts makes the keys, so that none is ever rendered."""

    #: Of the Secret.
    name: str
    #: Each gets ROLE.pem and ROLE-key.pem.
    roles: tuple[Role, ...]
    #: DNS names and addresses that the certificates are good for.
    hosts: tuple[str, ...]
    lifetime: timedelta
    #: metadata of the Secret: name, namespace, labels, ownerReferences.
    metadata: dict[str, Any]


@dataclass(frozen=True)
class Deletion:
    """A pod that should go. `uid` is a precondition: a younger pod of the same name is left alone."""

    name: str
    uid: str
    #: None: the pod's own. 0: at once, without its node's word.
    grace_seconds: int | None = None


@dataclass(frozen=True)
class Stop:
    """A pod that should end and stay there for its logs: patch spec.activeDeadlineSeconds to 1."""

    name: str
    uid: str


class EventType(StrEnum):
    """Of a Kubernetes event."""

    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True)
class Event:
    """Something that has just happened to the job. `reason` is one CamelCase word."""

    type: EventType
    reason: str
    message: str


@dataclass(frozen=True)
class Rendered:
    """To be done in the order of the fields, each only after the one before succeeded."""

    #: The whole new status: what it does not name should not be there.
    status: dict[str, Any]
    #: To be made before anything in `create`.
    credentials: CredentialsNeed | None = None
    delete: tuple[Deletion, ...] = ()
    stop: tuple[Stop, ...] = ()
    #: Whole manifests of what is wanted and not there, in the order to create them in.
    create: tuple[dict[str, Any], ...] = ()
    #: Its time after the end is over.
    delete_job: bool = False
    #: What the old status did not tell yet; to be sent once the new one is written.
    events: tuple[Event, ...] = ()
    #: Seconds until time alone changes the answer; None: never.
    again_after: float | None = None
