"""The client for programs that use asyncio. AlignmentClient has the same methods for those that do not."""

import asyncio
import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias, overload

from kubealign.client.async_job import AsyncJob
from kubealign.client.errors import JobNotFound, KubealignError, WaitTimeout
from kubealign.client.handing_in import Document, Text, handed_in
from kubealign.client.loaded_result import Result, load
from kubealign.client.metrics_table import MetricsTable
from kubealign.client.records import JobEvent, JobRecord, JobRef, ListQuery, LogLine, ProcessRecord
from kubealign.client.waiting import reached, still_waits, wanted_phase
from kubealign.read_model import BEGINNING, Sample, StepMetrics
from kubealign.spec.status import JobPhase

if TYPE_CHECKING:
    from kubealign.client.site import Site

RUNS_DIR = "KUBEALIGN_RUNS_DIR"
_PAGE = 500
_METRICS_PAGE = 5000

Jobs: TypeAlias = list[AsyncJob]
Reported: TypeAlias = list[StepMetrics]
#: Called with the job after each of its changes.
OnChange: TypeAlias = Callable[[AsyncJob], Awaitable[object] | object]


class AsyncAlignmentClient:
    """Jobs of a cluster or of this machine.

    `AsyncAlignmentClient.cluster()` and `.local()` say which. Without either it is this machine where
    KUBEALIGN_RUNS_DIR is set, else the cluster. The site is opened when it is first used; `close`, or
    `async with`, ends it. `namespace` is the site's own where it is left out.

    Everything raises a KubealignError (kubealign.errors) that says what to do."""

    def __init__(self, site: "Site | None" = None) -> None:
        self._site = site
        self._open: Callable[[], Awaitable[Site]] = _default
        self._opening = asyncio.Lock()

    @classmethod
    def cluster(
        cls,
        kubeconfig: Path | str | None = None,
        context: str | None = None,
        namespace: str | None = None,
        dashboard: str | None = None,
        token: str | None = None,
    ) -> "AsyncAlignmentClient":
        """A cluster, as kubectl finds it: by kubeconfig, or in a pod by its service account.

        `dashboard`: the address of the cluster's dashboard, which has figures and samples; None: it is found
        through the API server. `token`: for the dashboard, where the kubeconfig has none."""

        async def opened() -> "Site":
            from kubealign.client.cluster_opening import open_cluster

            return await open_cluster(kubeconfig, context, namespace, dashboard, token)

        client = cls()
        client._open = opened
        return client

    @classmethod
    def local(cls, runs_dir: Path | str = "runs") -> "AsyncAlignmentClient":
        """This machine. Each job has a folder in `runs_dir`."""
        from kubealign.client.local_site import LocalSite

        return cls(LocalSite(Path(runs_dir)))

    async def site(self) -> "Site":
        """Where the jobs are, opened. Raises Unavailable where it cannot be reached."""
        async with self._opening:
            if self._site is None:
                self._site = await self._open()
            return self._site

    @overload
    async def submit(self, job: Document, *, dry_run: bool = False) -> AsyncJob: ...
    @overload
    async def submit(self, job: Text, *, dry_run: bool = False) -> AsyncJob | Jobs: ...
    @overload
    async def submit(self, job: Sequence[Document | Text], *, dry_run: bool = False) -> AsyncJob | Jobs: ...
    async def submit(
        self, job: Document | Text | Sequence[Document | Text], *, dry_run: bool = False
    ) -> AsyncJob | Jobs:
        """Hand in a job: an AlignmentJob, a dict, a YAML text, or a file's path. Several at once (a list, or
        a text or file with several documents) are handed in in the order of their dependencies, and come
        back as a list. `dry_run`: only check.

        Raises JobInvalid, place by place, and JobExists."""
        given = handed_in(job)
        jobs = await self._submit(given.documents, dry_run)
        return jobs if given.several else jobs[0]

    async def submit_all(
        self, jobs: Document | Text | Sequence[Document | Text], *, dry_run: bool = False
    ) -> Jobs:
        """`submit`, with a list whatever is handed in."""
        return await self._submit(handed_in(jobs).documents, dry_run)

    async def get(self, name: str, namespace: str | None = None) -> AsyncJob:
        """Raises JobNotFound."""
        site = await self.site()
        return AsyncJob(self, await site.get(await self._ref(name, namespace)))

    async def list(
        self,
        namespace: str | None = None,
        *,
        all_namespaces: bool = False,
        label_selector: str = "",
        search: str = "",
        phases: Sequence[str] = (),
        algorithms: Sequence[str] = (),
        sort: str = "-created",
        limit: int | None = None,
    ) -> Jobs:
        """All jobs that match, or the first `limit` of them. `label_selector` is as kubectl's -l, `search` a
        part of the name, `sort` one of name, created, phase, step and reward, the greatest first with a -."""
        site = await self.site()
        found: Jobs = []
        after = ""
        while True:
            query = ListQuery(
                namespace=None if all_namespaces else namespace or site.namespace,
                label_selector=label_selector,
                search=search,
                phases=frozenset(phases),
                algorithms=frozenset(algorithms),
                sort=sort,
                limit=_PAGE if limit is None else max(1, min(_PAGE, limit - len(found))),
                after=after,
            )
            page = await site.list(query)
            found += [AsyncJob(self, record) for record in page.jobs]
            after = page.next
            if not after or (limit is not None and len(found) >= limit):
                return found if limit is None else found[:limit]

    async def changes(self, name: str, namespace: str | None = None) -> AsyncIterator[AsyncJob]:
        """The job as it is now, then after each change. Ends when it is gone."""
        site = await self.site()
        async for record in site.watch(await self._ref(name, namespace)):
            yield AsyncJob(self, record)

    async def wait(
        self,
        name: str,
        timeout: float | None = None,
        on_change: OnChange | None = None,
        until: str = JobPhase.SUCCEEDED,
        namespace: str | None = None,
    ) -> AsyncJob:
        """Return once the job is in the phase `until`, or past it. `timeout`: in seconds, None for ever;
        `on_change` is called with the job as it is now, and after each change.

        Raises JobFailed with the job's cause, WaitTimeout saying what the job waits for, JobNotFound when it
        is deleted meanwhile, and Conflict where it is over and never was there."""
        phase = wanted_phase(until)
        ref = await self._ref(name, namespace)
        last: JobRecord | None = None
        try:
            async with asyncio.timeout(timeout):
                async for record in (await self.site()).watch(ref):
                    last = record
                    job = AsyncJob(self, record)
                    told = on_change(job) if on_change is not None else None
                    if inspect.isawaitable(told):
                        await told
                    if reached(record, phase):
                        return job
        except TimeoutError:
            assert timeout is not None
            raise WaitTimeout(still_waits(last, str(ref), phase, timeout)) from None
        raise JobNotFound(f"{ref} was deleted while it was waited for")

    async def logs(
        self,
        name: str,
        role: str | None = None,
        process: str | None = None,
        follow: bool = False,
        tail: int | None = None,
        namespace: str | None = None,
    ) -> AsyncIterator[LogLine]:
        """Lines of one process (trainer-0), of all of a role (rollout), or of all. `follow`: until the job is
        over, also of processes that are not there yet. `tail`: only the last lines of each at first."""
        site = await self.site()
        ref = await self._ref(name, namespace)
        async for line in site.logs(ref, process=process, role=role, follow=follow, tail=tail):
            yield line

    async def metrics(self, name: str, namespace: str | None = None) -> MetricsTable:
        """What was measured, a row a step."""
        site, ref = await self.site(), await self._ref(name, namespace)
        reported: Reported = []
        after = BEGINNING
        while page := await site.metrics(ref, after, _METRICS_PAGE):
            reported += page
            after = page[-1].entry
        return MetricsTable.of(reported)

    async def samples(
        self, name: str, step: int | None = None, count: int = 8, namespace: str | None = None
    ) -> "Sequence[Sample]":
        """The last `count` responses of the policy, of one step where `step` says so; newest first."""
        site = await self.site()
        return await site.samples(await self._ref(name, namespace), count=count, step=step, newest=True)

    async def events(self, name: str, namespace: str | None = None) -> Sequence[JobEvent]:
        """What happened to the job, oldest first."""
        site = await self.site()
        return await site.events(await self._ref(name, namespace))

    async def processes(self, name: str, namespace: str | None = None) -> Sequence[ProcessRecord]:
        """The job's processes, and what each says of itself."""
        site = await self.site()
        return await site.processes(await self._ref(name, namespace))

    async def scale(self, name: str, replicas: int, namespace: str | None = None) -> AsyncJob:
        """Have this many rollout workers. Raises NotPossible for a job without any."""
        site = await self.site()
        return AsyncJob(self, await site.scale(await self._ref(name, namespace), replicas))

    async def suspend(self, name: str, namespace: str | None = None) -> AsyncJob:
        """Have the job save and give everything back. It is Suspending until it has."""
        site = await self.site()
        return AsyncJob(self, await site.suspend(await self._ref(name, namespace), True))

    async def resume(self, name: str, namespace: str | None = None) -> AsyncJob:
        """Have a suspended job go on from its last commit."""
        site = await self.site()
        return AsyncJob(self, await site.suspend(await self._ref(name, namespace), False))

    async def patch(self, name: str, patch: Mapping[str, Any], namespace: str | None = None) -> AsyncJob:
        """Change what may be changed, by a JSON merge patch. Raises JobInvalid, Conflict."""
        site = await self.site()
        return AsyncJob(self, await site.patch(await self._ref(name, namespace), patch))

    async def delete(self, name: str, namespace: str | None = None) -> None:
        """With all that it owns. In a cluster its volumes stay; on this machine its result goes too."""
        site = await self.site()
        await site.delete(await self._ref(name, namespace))

    async def result(self, name: str, into: Path | str | None = None, namespace: str | None = None) -> Path:
        """A folder on this machine with the result, as Hugging Face has them. `into`: where to put it, if it
        must be fetched. Raises NotPossible as long as there is none."""
        site = await self.site()
        folder = None if into is None else Path(into)
        return await site.result(await self._ref(name, namespace), folder)

    async def load_result(
        self, name: str, into: Path | str | None = None, namespace: str | None = None, **arguments: Any
    ) -> Result:
        """The result's model and tokenizer. `arguments` go to the model's from_pretrained."""
        path = await self.result(name, into, namespace)
        return await asyncio.to_thread(load, path, **arguments)

    async def close(self) -> None:
        """Let go of the site. Jobs go on."""
        if self._site is not None:
            await self._site.close()

    async def __aenter__(self) -> "AsyncAlignmentClient":
        await self.site()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _ref(self, name: str, namespace: str | None) -> JobRef:
        return JobRef(namespace or (await self.site()).namespace, name)

    async def _submit(self, documents: Sequence[Mapping[str, Any]], dry_run: bool) -> Jobs:
        site = await self.site()
        jobs: Jobs = []
        for document in documents:
            try:
                jobs.append(AsyncJob(self, await site.create(document, dry_run=dry_run)))
            except KubealignError as error:
                if jobs and not dry_run:
                    error.add_note(f"submitted before it: {', '.join(job.name for job in jobs)}")
                raise
        return jobs


async def _default() -> "Site":
    folder = os.environ.get(RUNS_DIR)
    client = AsyncAlignmentClient.local(folder) if folder else AsyncAlignmentClient.cluster()
    return await client.site()
