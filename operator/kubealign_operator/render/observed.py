"""The observed state of a job, which is the input of the planner."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from kubealign.spec.algorithms import Makes


@dataclass(frozen=True, slots=True)
class Waiting:
    """The kubelet's reason why a container does not run yet."""

    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Terminated:
    """The termination of a container."""

    exit_code: int
    reason: str = ""
    #: The process's termination message, else the end of its log.
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
    """A pod condition, such as PodScheduled or DisruptionTarget."""

    type: str
    status: str
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class PodView:
    """The relevant part of a pod, built by `pod_view`."""

    name: str
    uid: str
    labels: Mapping[str, str] = field(default_factory=dict)
    #: Pending, Running, Succeeded, Failed, Unknown; empty: unset.
    phase: str = ""
    #: The pod's own reason and message, such as Evicted.
    reason: str = ""
    message: str = ""
    ready: bool = False
    node: str = ""
    created_at: datetime | None = None
    #: metadata.deletionTimestamp, the end of the grace period; None: the pod is not being deleted.
    deletion_at: datetime | None = None
    #: spec.activeDeadlineSeconds.
    active_deadline_seconds: int | None = None
    #: limits.memory of the main container, verbatim.
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
    """Another job of the namespace, whose result this job reads."""

    name: str
    uid: str
    #: status.phase; empty before the first status.
    phase: str = ""
    #: status.message.
    message: str = ""
    #: spec.checkpoint.volume.
    volume: VolumeFolder | None = None
    #: status.result.
    result: VolumeFolder | None = None
    #: Kind of its result; None: its algorithm is unknown to this operator.
    makes: Makes | None = Makes.POLICY


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress as reported by the job's driver. None: not reported."""

    step: int | None = None
    max_steps: int | None = None
    weight_version: int | None = None
    reward: float | None = None
    #: KL divergence in nats per token.
    kl: float | None = None
    waiting_for: str = ""


@dataclass(frozen=True)
class Observed:
    """The observed state of a job and of everything that belongs to it."""

    #: The AlignmentJob as JSON: metadata, spec, status.
    job: Mapping[str, Any]
    #: The pods whose labels name this job.
    pods: tuple[PodView, ...] = ()
    #: (kind, name) of the existing objects other than pods: Secret, ConfigMap, Service, NetworkPolicy.
    objects: frozenset[tuple[str, str]] = frozenset()
    #: Name of a pod or object -> error of the last attempt to create it.
    refusals: Mapping[str, str] = field(default_factory=dict)
    #: Name -> job that this one depends on; None: the job does not exist.
    dependencies: Mapping[str, JobView | None] = field(default_factory=dict)
    #: Dependency cycle as job names, beginning and ending with this job; empty: no cycle.
    circle: tuple[str, ...] = ()
    progress: Progress | None = None
