"""The observed state of a job, which is the input of the planner."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from kubealign.spec.algorithms import ResultKind
from kubealign_operator.kube_views.kueue_view import KueueView


@dataclass(frozen=True, slots=True)
class ContainerWaiting:
    """The kubelet's reason why a container does not run yet."""

    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class ContainerTerminated:
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
    waiting: ContainerWaiting | None = None
    terminated: ContainerTerminated | None = None


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
    #: uid of the AlignmentJob that controls the pod; empty: none does.
    owner_uid: str = ""
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
    #: metadata.deletionGracePeriodSeconds of a pod that is being deleted; 0: its containers have ended, or
    #: nobody waits for them.
    deletion_grace_seconds: int | None = None
    #: The finalizers that keep the pod after its deletion.
    finalizers: tuple[str, ...] = ()
    #: spec.activeDeadlineSeconds.
    active_deadline_seconds: int | None = None
    #: limits.memory of the main container, verbatim.
    memory_limit: str = ""
    #: GPUs in the limits of the main container.
    gpus: int = 0
    containers: tuple[ContainerView, ...] = ()
    conditions: tuple[PodCondition, ...] = ()


@dataclass(frozen=True, slots=True)
class VolumePath:
    """A folder of a PersistentVolumeClaim."""

    claim_name: str
    path: str = ""


@dataclass(frozen=True, slots=True)
class DependencyView:
    """Another job of the namespace, whose result this job reads."""

    name: str
    uid: str
    #: status.phase; empty before the first status.
    phase: str = ""
    #: status.message.
    message: str = ""
    #: spec.checkpoint.volume.
    volume: VolumePath | None = None
    #: status.result.
    result: VolumePath | None = None
    #: Kind of its result; None: its algorithm is unknown to this operator.
    makes: ResultKind | None = ResultKind.POLICY


@dataclass(frozen=True, slots=True)
class StartingJob:
    """Another job that waits for its turn to start, or has it."""

    namespace: str
    name: str
    uid: str
    #: status.startTurn.waitingSince; None: it does not wait.
    waiting_since: datetime | None = None
    #: status.startTurn.heldSince; None: it has no turn.
    held_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class DriverProgress:
    """Progress as reported by the job's driver. None: not reported."""

    step: int | None = None
    max_steps: int | None = None
    weight_version: int | None = None
    reward: float | None = None
    #: KL divergence in nats per token.
    kl: float | None = None
    waiting_for: str = ""


@dataclass(frozen=True)
class ObservedState:
    """The observed state of a job and of everything that belongs to it."""

    #: The AlignmentJob as JSON: metadata, spec, status.
    job: Mapping[str, Any]
    #: Reason why parts of the AlignmentJob are missing; empty: none are.
    unreadable: str = ""
    #: The pods whose labels name this job.
    pods: tuple[PodView, ...] = ()
    #: (kind, name) of the existing objects other than pods: Secret, ConfigMap, Service, NetworkPolicy,
    #: PodDisruptionBudget.
    objects: frozenset[tuple[str, str]] = frozenset()
    #: Name of a pod or object -> error of the last attempt to create it.
    create_errors: Mapping[str, str] = field(default_factory=dict)
    #: Name -> job that this one depends on; None: the job does not exist.
    dependencies: Mapping[str, DependencyView | None] = field(default_factory=dict)
    #: Dependency cycle as job names, beginning and ending with this job; empty: no cycle.
    dependency_cycle: tuple[str, ...] = ()
    progress: DriverProgress | None = None
    #: All other jobs that wait for their turn to start, or have it.
    starting_jobs: tuple[StartingJob, ...] = ()
    kueue: KueueView = field(default_factory=KueueView)
