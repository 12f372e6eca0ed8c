"""Client for asyncio programs. AlignmentClient has the same methods for synchronous programs."""

import asyncio
import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias, overload

from kubealign.client.backends.worker_groups import ROLLOUT
from kubealign.client.errors import JobInvalid, JobNotFound, KubealignError, WaitTimeout
from kubealign.client.job import AsyncJob
from kubealign.client.metrics_table import MetricsTable
from kubealign.client.records import JobEvent, JobRecord, JobRef, ListQuery, LogLine, ProcessRecord
from kubealign.client.results.model_loader import Result, load_result
from kubealign.client.submission import Document, DocumentSource, parse_submission, to_document
from kubealign.client.wait import has_reached, parse_phase, timeout_message
from kubealign.read_model import STREAM_START, SampleRecord, StepMetrics
from kubealign.spec.changes.fork import fork_job
from kubealign.spec.errors import SpecErrors
from kubealign.spec.status import JobPhase

if TYPE_CHECKING:
    from kubealign.client.backends.base import JobBackend

RUNS_DIR_VARIABLE = "KUBEALIGN_RUNS_DIR"
_PAGE_SIZE = 500
_METRICS_PAGE_SIZE = 5000

Jobs: TypeAlias = list[AsyncJob]
StepMetricsList: TypeAlias = list[StepMetrics]
#: Called with the job after each of its changes.
OnChange: TypeAlias = Callable[[AsyncJob], Awaitable[object] | object]


class AsyncAlignmentClient:
    """Client of the jobs of a cluster or of this machine.

    `AsyncAlignmentClient.cluster()` and `.local()` select the backend. Without either, the backend is this
    machine if KUBEALIGN_RUNS_DIR is set, else the cluster. The backend is opened on first use; `close`, or
    `async with`, closes it. `namespace`, where omitted, is the default namespace of the backend.

    Every method raises a KubealignError (kubealign.errors) whose message states the remedy.
    """

    def __init__(self, backend: "JobBackend | None" = None) -> None:
        self._backend = backend
        self._open: Callable[[], Awaitable[JobBackend]] = _open_default_backend
        self._open_lock = asyncio.Lock()

    @classmethod
    def cluster(
        cls,
        kubeconfig: Path | str | None = None,
        context: str | None = None,
        namespace: str | None = None,
        dashboard: str | None = None,
        token: str | None = None,
    ) -> "AsyncAlignmentClient":
        """Create a client of a cluster, located in the same way as by kubectl.

        Args:
            dashboard: Address of the cluster's dashboard, which serves metrics and samples; None finds it
                through the API server.
            token: Token for the dashboard, if the kubeconfig has none.
        """

        async def open_backend() -> "JobBackend":
            from kubealign.client.backends.cluster.backend import open_cluster

            return await open_cluster(kubeconfig, context, namespace, dashboard, token)

        client = cls()
        client._open = open_backend
        return client

    @classmethod
    def local(cls, runs_dir: Path | str = "runs") -> "AsyncAlignmentClient":
        """Create a client of this machine. Each job has a run directory in `runs_dir`."""
        from kubealign.client.backends.local.backend import LocalBackend

        return cls(LocalBackend(Path(runs_dir)))

    async def backend(self) -> "JobBackend":
        """Return the opened backend. Raises Unavailable if the backend cannot be reached."""
        async with self._open_lock:
            if self._backend is None:
                self._backend = await self._open()
            return self._backend

    @overload
    async def submit(self, job: Document, *, dry_run: bool = False) -> AsyncJob: ...
    @overload
    async def submit(self, job: DocumentSource, *, dry_run: bool = False) -> AsyncJob | Jobs: ...
    @overload
    async def submit(
        self, job: Sequence[Document | DocumentSource], *, dry_run: bool = False
    ) -> AsyncJob | Jobs: ...
    async def submit(
        self, job: Document | DocumentSource | Sequence[Document | DocumentSource], *, dry_run: bool = False
    ) -> AsyncJob | Jobs:
        """Submit one or several jobs.

        Several jobs (a list, or a text or file with several documents) are submitted in the order of their
        dependencies and returned as a list.

        Args:
            job: An AlignmentJob, a dict, a YAML text, or the path of a file.
            dry_run: Validate only.

        Raises:
            JobInvalid: With an error per invalid field.
            JobExists: A job of this name already exists.
        """
        submission = parse_submission(job)
        jobs = await self._submit(submission.documents, dry_run)
        return jobs if submission.is_list else jobs[0]

    async def submit_all(
        self, jobs: Document | DocumentSource | Sequence[Document | DocumentSource], *, dry_run: bool = False
    ) -> Jobs:
        """Like `submit`, but always return a list."""
        return await self._submit(parse_submission(jobs).documents, dry_run)

    async def fork(
        self,
        name: str,
        step: int,
        new_name: str,
        overrides: Sequence[str] = (),
        namespace: str | None = None,
        *,
        dry_run: bool = False,
    ) -> AsyncJob:
        """Submit a new job that starts from a checkpoint of job `name`, which is only read.

        Args:
            step: Step of the checkpoint; the new job's first step is the next one.
            new_name: Name of the new job.
            overrides: Fields to change, each as PATH=VALUE.
            dry_run: Validate only.

        Raises:
            JobInvalid: A field is invalid or must be the parent's, or on this machine the job has no
                checkpoint of the step.
            JobExists: A job of the new name already exists.
        """
        backend = await self.backend()
        record = await backend.get(await self._ref(name, namespace))
        try:
            forked = fork_job(record.resource, new_name, step, overrides)
        except SpecErrors as errors:
            raise JobInvalid(str(errors), errors.errors) from None
        return AsyncJob(self, await backend.create(to_document(forked.job), dry_run=dry_run))

    async def get(self, name: str, namespace: str | None = None) -> AsyncJob:
        """Return a job. Raises JobNotFound."""
        backend = await self.backend()
        return AsyncJob(self, await backend.get(await self._ref(name, namespace)))

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
        """Return all matching jobs, or the first `limit` of them.

        Args:
            label_selector: Label selector in kubectl's -l syntax.
            search: Part of the name.
            sort: One of name, created, phase, step and reward; a leading - sorts in descending order.
        """
        backend = await self.backend()
        matching: Jobs = []
        after = ""
        while True:
            query = ListQuery(
                namespace=None if all_namespaces else namespace or backend.namespace,
                label_selector=label_selector,
                search=search,
                phases=frozenset(phases),
                algorithms=frozenset(algorithms),
                sort=sort,
                limit=_PAGE_SIZE if limit is None else max(1, min(_PAGE_SIZE, limit - len(matching))),
                after=after,
            )
            page = await backend.list(query)
            matching += [AsyncJob(self, record) for record in page.jobs]
            after = page.next
            if not after or (limit is not None and len(matching) >= limit):
                return matching if limit is None else matching[:limit]

    async def changes(self, name: str, namespace: str | None = None) -> AsyncIterator[AsyncJob]:
        """Yield the job as it is now, then after each change. Ends when the job is deleted."""
        backend = await self.backend()
        async for record in backend.watch(await self._ref(name, namespace)):
            yield AsyncJob(self, record)

    async def wait(
        self,
        name: str,
        timeout: float | None = None,
        on_change: OnChange | None = None,
        until: str = JobPhase.SUCCEEDED,
        namespace: str | None = None,
    ) -> AsyncJob:
        """Return once the job is in the phase `until`, or past it.

        Args:
            timeout: Seconds; None waits forever.
            on_change: Called with the job as it is now, and after each change.

        Raises:
            JobFailed: With the job's cause.
            WaitTimeout: States what the job is waiting for.
            JobNotFound: The job was deleted in the meantime.
            Conflict: The job has finished and can no longer reach the phase.
        """
        phase = parse_phase(until)
        ref = await self._ref(name, namespace)
        last: JobRecord | None = None
        try:
            async with asyncio.timeout(timeout):
                async for record in (await self.backend()).watch(ref):
                    last = record
                    job = AsyncJob(self, record)
                    callback_result = on_change(job) if on_change is not None else None
                    if inspect.isawaitable(callback_result):
                        await callback_result
                    if has_reached(record, phase):
                        return job
        except TimeoutError:
            assert timeout is not None
            raise WaitTimeout(timeout_message(last, str(ref), phase, timeout)) from None
        raise JobNotFound(f"{ref} was deleted while it was waited for")

    async def logs(
        self,
        name: str,
        role: str | None = None,
        process: str | None = None,
        follow: bool = False,
        tail: int | None = None,
        namespace: str | None = None,
        previous: bool = False,
    ) -> AsyncIterator[LogLine]:
        """Yield log lines of one process (trainer-0), of all processes of a role (rollout), or of all
        processes.

        Args:
            follow: Continue until the job has finished, including processes that start later.
            tail: Start with this many last lines of each process.
            previous: Only the lines of the last failed attempt of each process, in a cluster.
        """
        backend = await self.backend()
        ref = await self._ref(name, namespace)
        async for line in backend.logs(
            ref, process=process, role=role, follow=follow, tail=tail, previous=previous
        ):
            yield line

    async def metrics(self, name: str, namespace: str | None = None) -> MetricsTable:
        """Return the metrics of the job, one row per step."""
        backend, ref = await self.backend(), await self._ref(name, namespace)
        reported: StepMetricsList = []
        after = STREAM_START
        while page := await backend.metrics(ref, after, _METRICS_PAGE_SIZE):
            reported += page
            after = page[-1].entry
        return MetricsTable.from_steps(reported)

    async def samples(
        self, name: str, step: int | None = None, count: int = 8, namespace: str | None = None
    ) -> "Sequence[SampleRecord]":
        """Return the last `count` responses of the policy, newest first; only those of `step` if given."""
        backend = await self.backend()
        return await backend.samples(await self._ref(name, namespace), count=count, step=step, newest=True)

    async def events(self, name: str, namespace: str | None = None) -> Sequence[JobEvent]:
        """Return the events of the job, oldest first."""
        backend = await self.backend()
        return await backend.events(await self._ref(name, namespace))

    async def processes(self, name: str, namespace: str | None = None) -> Sequence[ProcessRecord]:
        """Return the processes of the job, with their heartbeats."""
        backend = await self.backend()
        return await backend.processes(await self._ref(name, namespace))

    async def scale(
        self, name: str, replicas: int, namespace: str | None = None, *, group: str = ROLLOUT
    ) -> AsyncJob:
        """Set the number of rollout workers, or of another group of workers: environment, and on this machine
        also reward-NAME, reference, teacher or teacher-NAME. Raises NotPossible for a job without them.
        """
        backend = await self.backend()
        return AsyncJob(self, await backend.scale(await self._ref(name, namespace), replicas, group))

    async def suspend(self, name: str, namespace: str | None = None) -> AsyncJob:
        """Suspend the job: it saves a checkpoint and releases its resources, and is Suspending until then."""
        backend = await self.backend()
        return AsyncJob(self, await backend.suspend(await self._ref(name, namespace), True))

    async def resume(self, name: str, namespace: str | None = None) -> AsyncJob:
        """Resume a suspended job from its last checkpoint."""
        backend = await self.backend()
        return AsyncJob(self, await backend.suspend(await self._ref(name, namespace), False))

    async def retry(self, name: str, namespace: str | None = None) -> AsyncJob:
        """Start a failed job again from its last checkpoint, with a new restart budget.

        In a cluster the job stays Failed until the pods of the failed attempt are gone; activeDeadlineSeconds
        counts over all attempts. Raises Conflict for a job that has not failed.
        """
        backend = await self.backend()
        return AsyncJob(self, await backend.retry(await self._ref(name, namespace)))

    async def patch(self, name: str, patch: Mapping[str, Any], namespace: str | None = None) -> AsyncJob:
        """Change mutable fields of the job by a JSON merge patch. Raises JobInvalid, Conflict."""
        backend = await self.backend()
        return AsyncJob(self, await backend.patch(await self._ref(name, namespace), patch))

    async def delete(self, name: str, namespace: str | None = None) -> None:
        """Delete the job and everything that it owns.

        In a cluster the job's volumes are kept; a local job's result is deleted too.
        """
        backend = await self.backend()
        await backend.delete(await self._ref(name, namespace))

    async def result(self, name: str, into: Path | str | None = None, namespace: str | None = None) -> Path:
        """Return a folder on this machine with the result, in Hugging Face layout.

        Args:
            into: Target folder if the result must be downloaded.

        Raises:
            NotPossible: The job has no result yet.
        """
        backend = await self.backend()
        folder = None if into is None else Path(into)
        return await backend.result(await self._ref(name, namespace), folder)

    async def load_result(
        self, name: str, into: Path | str | None = None, namespace: str | None = None, **arguments: Any
    ) -> Result:
        """Load the result's model and tokenizer. `arguments` are passed to the model's from_pretrained."""
        path = await self.result(name, into, namespace)
        return await asyncio.to_thread(load_result, path, **arguments)

    async def close(self) -> None:
        """Close the backend. Jobs continue to run."""
        if self._backend is not None:
            await self._backend.close()

    async def __aenter__(self) -> "AsyncAlignmentClient":
        await self.backend()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _ref(self, name: str, namespace: str | None) -> JobRef:
        return JobRef(namespace or (await self.backend()).namespace, name)

    async def _submit(self, documents: Sequence[Mapping[str, Any]], dry_run: bool) -> Jobs:
        backend = await self.backend()
        jobs: Jobs = []
        for document in documents:
            try:
                jobs.append(AsyncJob(self, await backend.create(document, dry_run=dry_run)))
            except KubealignError as error:
                if jobs and not dry_run:
                    error.add_note(f"submitted before it: {', '.join(job.name for job in jobs)}")
                raise
        return jobs


async def _open_default_backend() -> "JobBackend":
    folder = os.environ.get(RUNS_DIR_VARIABLE)
    client = AsyncAlignmentClient.local(folder) if folder else AsyncAlignmentClient.cluster()
    return await client.backend()
