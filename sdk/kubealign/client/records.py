"""Data classes that a client returns for jobs."""

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
    """Reference to a job."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class JobRecord:
    """Job as stored by its backend.

    `resource` holds apiVersion, kind, metadata, spec and status, as in Kubernetes; local runs have the
    same form.
    """

    resource: Mapping[str, Any]

    @property
    def metadata(self) -> Mapping[str, Any]:
        fields: Mapping[str, Any] = self.resource.get("metadata") or {}
        return fields

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
    def is_deleting(self) -> bool:
        return bool(self.metadata.get("deletionTimestamp"))

    @cached_property
    def status(self) -> AlignmentJobStatus:
        return AlignmentJobStatus.model_validate(self.resource.get("status") or {})

    @property
    def phase(self) -> JobPhase | None:
        """Phase of the job; None if the job was not reconciled yet."""
        return self.status.phase

    @property
    def algorithm(self) -> str:
        """Member of the algorithm union in the spec: ppo, sft, ..."""
        union = (self.resource.get("spec") or {}).get("algorithm")
        return next(iter(union), "") if isinstance(union, Mapping) else ""

    @cached_property
    def job(self) -> AlignmentJob:
        """Job document without its status, typed.

        Raises pydantic's ValidationError for a document that this version of the SDK does not understand.
        """
        document = {name: value for name, value in self.resource.items() if name != "status"}
        return AlignmentJob.model_validate(document)


@dataclass(frozen=True)
class ListQuery:
    """Filter, order and page of a list of jobs."""

    #: None: every namespace.
    namespace: str | None = None
    #: Used if `namespace` is None: only these namespaces; empty: every namespace.
    namespaces: frozenset[str] = frozenset()
    #: kubectl's -l syntax: `a=b,c!=d,e in (f,g),h,!i`.
    label_selector: str = ""
    #: Part of the name, case-insensitive.
    search: str = ""
    phases: frozenset[str] = frozenset()
    algorithms: frozenset[str] = frozenset()
    #: name, created, phase, step or reward; a leading hyphen sorts in descending order.
    sort: str = "-created"
    limit: int = 50
    #: `JobPage.next` of the previous page; empty: the first page.
    after: str = ""


@dataclass(frozen=True)
class JobPage:
    """One page of jobs.

    `next` is the cursor of the next page, empty at the end; `total` is the number of matching jobs, if the
    backend knows it.
    """

    jobs: Sequence[JobRecord]
    next: str = ""
    total: int | None = None
    #: Resource version from which a watch can start.
    resource_version: str = ""


class ProcessState(StrEnum):
    """State of one process of a job: a pod, or a child process."""

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
    #: Awaited condition or failure reason.
    message: str = ""
    started: datetime | None = None
    #: Last heartbeat (`heartbeat` in docs/metrics.md): weight_version, tokens_per_second, ...
    says: Mapping[str, Any] = field(default_factory=dict)
    #: Age of the last heartbeat in seconds; None: no heartbeat, or an expired one.
    silent_seconds: float | None = None
    #: Pod name or process id.
    where: str = ""


@dataclass(frozen=True)
class LogLine:
    """One line of the log of one process, unchanged."""

    process: str
    text: str


@dataclass(frozen=True)
class JobEvent:
    """One event of a job."""

    time: datetime
    #: Normal or Warning.
    type: str
    reason: str
    message: str
    count: int = 1
