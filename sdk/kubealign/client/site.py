"""A place that runs jobs, as a client sees it. There are two: a cluster, and this machine.

Every method raises a KubealignError (see errors): JobNotFound for a job that is not there, Forbidden and
Unauthenticated where the site says so, Unavailable when it does not answer.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from kubealign.client.records import JobEvent, JobPage, JobRecord, JobRef, ListQuery, LogLine, ProcessRecord
from kubealign.read_model import BEGINNING, Sample, StepMetrics


class Figures(Protocol):
    """What jobs say of themselves while they run, and what is kept of it."""

    async def metrics(self, ref: JobRef, after: str = BEGINNING, count: int = 1000) -> Sequence[StepMetrics]:
        """Steps in the order in which they were reported, those after the entry `after`. A step that is done
        again after a rollback comes again, under a higher fence."""

    async def samples(
        self,
        ref: JobRef,
        after: str = BEGINNING,
        count: int = 100,
        *,
        step: int | None = None,
        newest: bool = False,
    ) -> Sequence[Sample]:
        """Those after the entry `after`, oldest first; `newest`: the last ones instead, newest first. `step`:
        of that step alone."""

    async def heartbeats(self, ref: JobRef, processes: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        """What each of these processes last said of itself; the silent ones are left out."""


class Site(Figures, Protocol):
    """Where jobs run."""

    #: "cluster" or "local".
    kind: str
    #: Where a job without a namespace belongs.
    namespace: str

    async def create(self, resource: Mapping[str, Any], *, dry_run: bool = False) -> JobRecord:
        """Hand in a job, as a whole document. Raises JobExists, JobInvalid."""

    async def get(self, ref: JobRef) -> JobRecord: ...

    async def list(self, query: ListQuery) -> JobPage: ...

    async def patch(self, ref: JobRef, patch: Mapping[str, Any]) -> JobRecord:
        """A JSON merge patch (RFC 7386). Raises JobInvalid, Conflict."""

    async def delete(self, ref: JobRef) -> None:
        """With all that it owns; in a cluster its volumes stay, here its result goes with its folder."""

    async def scale(self, ref: JobRef, replicas: int) -> JobRecord:
        """Have this many rollout workers. Raises NotPossible, JobInvalid."""

    async def suspend(self, ref: JobRef, suspended: bool) -> JobRecord:
        """True: save, stop and give everything back; False: go on from the commit."""

    def watch(self, ref: JobRef) -> AsyncIterator[JobRecord]:
        """The job as it is now, then after each change. Ends when the job is gone."""

    async def processes(self, ref: JobRef) -> Sequence[ProcessRecord]:
        """With their heartbeats where those are known."""

    def logs(
        self,
        ref: JobRef,
        *,
        process: str | None = None,
        role: str | None = None,
        follow: bool = False,
        tail: int | None = None,
    ) -> AsyncIterator[LogLine]:
        """Of one process, of all of a role, or of all. `follow`: also of processes that come later, until the
        job is over; it may begin before the first one is there. `tail`: the last lines of each alone."""

    async def events(self, ref: JobRef) -> Sequence[JobEvent]:
        """Oldest first."""

    async def result(self, ref: JobRef, into: Path | None = None) -> Path:
        """A folder on this machine with the job's result, in Hugging Face's layout; `into`: where to put it,
        if it must be fetched. Raises NotPossible as long as there is none."""

    async def close(self) -> None: ...
