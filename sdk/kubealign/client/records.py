"""What a client gets to see of jobs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Any

from kubealign.spec.job import AlignmentJob
from kubealign.spec.status import AlignmentJobStatus, JobPhase


@dataclass(frozen=True)
class JobRef:
    """Which job."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class JobRecord:
    """A job as its site holds it. `resource`: apiVersion, kind, metadata, spec and status, as in Kubernetes;
    a local run is told in the same words."""

    resource: Mapping[str, Any]

    @property
    def metadata(self) -> Mapping[str, Any]:
        held: Mapping[str, Any] = self.resource.get("metadata") or {}
        return held

    @property
    def name(self) -> str:
        return str(self.metadata.get("name", ""))

    @property
    def namespace(self) -> str:
        return str(self.metadata.get("namespace", ""))

    @property
    def ref(self) -> JobRef:
        return JobRef(self.namespace, self.name)

    @property
    def uid(self) -> str:
        return str(self.metadata.get("uid", ""))

    @property
    def labels(self) -> Mapping[str, str]:
        return self.metadata.get("labels") or {}

    @property
    def created(self) -> datetime | None:
        text = self.metadata.get("creationTimestamp")
        return datetime.fromisoformat(text) if isinstance(text, str) else None

    @property
    def deleting(self) -> bool:
        return bool(self.metadata.get("deletionTimestamp"))

    @cached_property
    def status(self) -> AlignmentJobStatus:
        return AlignmentJobStatus.model_validate(self.resource.get("status") or {})

    @property
    def phase(self) -> JobPhase | None:
        """None: nobody has looked at it yet."""
        return self.status.phase

    @property
    def algorithm(self) -> str:
        """The union's member in the spec: ppo, sft, ..."""
        held = (self.resource.get("spec") or {}).get("algorithm")
        return next(iter(held), "") if isinstance(held, Mapping) else ""

    @cached_property
    def job(self) -> AlignmentJob:
        """The document without its status. Raises pydantic's ValidationError for one that this version of
        the SDK does not understand."""
        document = {name: value for name, value in self.resource.items() if name != "status"}
        return AlignmentJob.model_validate(document)


@dataclass(frozen=True)
class ListQuery:
    """Which jobs, and which page of them."""

    #: None: of every namespace.
    namespace: str | None = None
    #: Where `namespace` is None: of these alone; empty: of every one.
    namespaces: frozenset[str] = frozenset()
    #: As kubectl's -l: `a=b,c!=d,e in (f,g),h,!i`.
    label_selector: str = ""
    #: Part of the name, whatever its case.
    search: str = ""
    phases: frozenset[str] = frozenset()
    algorithms: frozenset[str] = frozenset()
    #: name, created, phase, step or reward; with a hyphen before it: the greatest first.
    sort: str = "-created"
    limit: int = 50
    #: What the page before gave as `JobPage.next`; empty: the first page.
    after: str = ""


@dataclass(frozen=True)
class JobPage:
    """Some jobs. `next`: where the next page begins, empty at the end; `total`: all that match, where the
    site knows it."""

    jobs: Sequence[JobRecord]
    next: str = ""
    total: int | None = None
    #: A position in the site's history, for watching from there.
    resource_version: str = ""


class ProcessState(StrEnum):
    """Of one process of a job: a pod, or a child process."""

    WAITING = "Waiting"
    STARTING = "Starting"
    READY = "Ready"
    RESTARTING = "Restarting"
    FINISHED = "Finished"
    FAILED = "Failed"
    STOPPED = "Stopped"


@dataclass(frozen=True)
class ProcessRecord:
    """One process of a job."""

    name: str
    #: trainer, critic, reference, teacher, reward, rollout, driver, prepare, nats or redis.
    role: str
    state: ProcessState
    restarts: int = 0
    #: What it waits for, or why it failed.
    message: str = ""
    started: datetime | None = None
    #: What it last said of itself (`heartbeat` in docs/metrics.md): weight_version, tokens_per_second, ...
    says: Mapping[str, Any] = field(default_factory=dict)
    #: Seconds since it said so; None: never, or too long ago.
    silent_seconds: float | None = None
    #: The pod, or the process id.
    where: str = ""


@dataclass(frozen=True)
class LogLine:
    """One line of one process's log, as it was written."""

    process: str
    text: str


@dataclass(frozen=True)
class JobEvent:
    """Something that happened to a job."""

    time: datetime
    #: Normal or Warning.
    type: str
    reason: str
    message: str
    count: int = 1
