"""What exists of a job, as `render` is told."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from kubealign.spec.algorithms import Makes


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a container does not run yet, in the kubelet's words."""

    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Terminated:
    """How a container ended."""

    exit_code: int
    reason: str = ""
    #: What the process wrote to its termination file, else the end of its log.
    message: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ContainerView:
    """One container of a pod."""

    name: str
    running: bool = False
    waiting: Waiting | None = None
    terminated: Terminated | None = None


@dataclass(frozen=True, slots=True)
class PodCondition:
    """PodScheduled, DisruptionTarget ..."""

    type: str
    status: str
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class PodView:
    """What of a pod matters here: made by `pod_view`."""

    name: str
    uid: str
    labels: Mapping[str, str] = field(default_factory=dict)
    #: Pending, Running, Succeeded, Failed, Unknown; empty: not said.
    phase: str = ""
    #: The pod's own reason and message, such as Evicted.
    reason: str = ""
    message: str = ""
    ready: bool = False
    node: str = ""
    created_at: datetime | None = None
    #: metadata.deletionTimestamp: when its grace is over; None: it is not being deleted.
    deletion_at: datetime | None = None
    #: spec.activeDeadlineSeconds.
    active_deadline_seconds: int | None = None
    #: limits.memory of the main container, as it is written.
    memory_limit: str = ""
    containers: tuple[ContainerView, ...] = ()
    conditions: tuple[PodCondition, ...] = ()


@dataclass(frozen=True, slots=True)
class VolumeFolder:
    """A folder of a PersistentVolumeClaim."""

    claim_name: str
    path: str = ""


@dataclass(frozen=True, slots=True)
class JobView:
    """Another job of the namespace, whose result this one reads."""

    name: str
    uid: str
    #: status.phase; empty: none yet.
    phase: str = ""
    #: status.message.
    message: str = ""
    #: spec.checkpoint.volume.
    volume: VolumeFolder | None = None
    #: status.result.
    result: VolumeFolder | None = None
    #: What its result is; None: its algorithm is not known here.
    makes: Makes | None = Makes.POLICY


@dataclass(frozen=True, slots=True)
class Progress:
    """What the job's driver says of itself. None: it has not said."""

    step: int | None = None
    max_steps: int | None = None
    weight_version: int | None = None
    reward: float | None = None
    #: Nats a token.
    kl: float | None = None
    waiting_for: str = ""


@dataclass(frozen=True)
class Observed:
    """One look at a job and at everything that belongs to it."""

    #: The AlignmentJob as the API gives it: metadata, spec, status.
    job: Mapping[str, Any]
    #: The pods with this job's name in their labels.
    pods: tuple[PodView, ...] = ()
    #: (kind, name) of what exists besides pods: Secret, ConfigMap, Service, NetworkPolicy.
    objects: frozenset[tuple[str, str]] = frozenset()
    #: Name of a pod or object -> why the API refused to create it last time.
    refusals: Mapping[str, str] = field(default_factory=dict)
    #: Name -> the job that this one depends on; None: there is no such job.
    dependencies: Mapping[str, JobView | None] = field(default_factory=dict)
    #: The job's name, those that it waits for one after the other, and its name again; empty: no circle.
    circle: tuple[str, ...] = ()
    progress: Progress | None = None
