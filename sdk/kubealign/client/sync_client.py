"""Synchronous client for scripts and notebooks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias, overload

from kubealign.client.async_client import AsyncAlignmentClient
from kubealign.client.backends.worker_groups import ROLLOUT
from kubealign.client.errors import JobNotFound, WaitTimeout
from kubealign.client.event_loop_thread import EventLoopThread
from kubealign.client.job import AsyncJob, Job
from kubealign.client.metrics_table import MetricsTable
from kubealign.client.records import JobEvent, LogLine, ProcessRecord
from kubealign.client.results.model_loader import Result
from kubealign.client.submission import Document, DocumentSource
from kubealign.client.wait import has_reached, parse_phase, timeout_message
from kubealign.read_model import SampleRecord
from kubealign.spec.status import JobPhase

if TYPE_CHECKING:
    from kubealign.client.backends.base import JobBackend

Jobs: TypeAlias = list[Job]


class AlignmentClient:
    """Client of the jobs of a cluster or of this machine.

    `AlignmentClient.cluster()` and `.local()` select the backend. Without either, the backend is this
    machine if KUBEALIGN_RUNS_DIR is set, else the cluster. `close`, or `with`, releases the connections;
    jobs continue to run. `namespace`, where omitted, is the default namespace of the backend.

    The client runs an event loop in a thread of its own, so it can be used where an event loop is already
    running, as in a notebook. It does not survive a fork: create one in each process.

    Every method raises a KubealignError (kubealign.errors) whose message states the remedy.
    """

    def __init__(self, backend: "JobBackend | None" = None) -> None:
        self._start(AsyncAlignmentClient(backend))

    @classmethod
    def cluster(
        cls,
        kubeconfig: Path | str | None = None,
        context: str | None = None,
        namespace: str | None = None,
        dashboard: str | None = None,
        token: str | None = None,
    ) -> "AlignmentClient":
        """Create a client of a cluster, located in the same way as by kubectl.

        Args:
            dashboard: Address of the cluster's dashboard, which serves metrics and samples; None finds it
                through the API server.
            token: Token for the dashboard, if the kubeconfig has none.

        Raises:
            Unavailable: No cluster was found.
        """
        return cls._from_async(AsyncAlignmentClient.cluster(kubeconfig, context, namespace, dashboard, token))

    @classmethod
    def local(cls, runs_dir: Path | str = "runs") -> "AlignmentClient":
        """Create a client of this machine. Each job has a run directory in `runs_dir`."""
        return cls._from_async(AsyncAlignmentClient.local(runs_dir))

    @overload
    def submit(self, job: Document, *, dry_run: bool = False) -> Job: ...
    @overload
    def submit(self, job: DocumentSource, *, dry_run: bool = False) -> Job | Jobs: ...
    @overload
    def submit(self, job: Sequence[Document | DocumentSource], *, dry_run: bool = False) -> Job | Jobs: ...
    def submit(
        self, job: Document | DocumentSource | Sequence[Document | DocumentSource], *, dry_run: bool = False
    ) -> Job | Jobs:
        """Submit one or several jobs.

        See `AsyncAlignmentClient.submit`.
        """
        submitted = self._loop.call(self._client.submit(job, dry_run=dry_run))
        if isinstance(submitted, AsyncJob):
            return self._to_job(submitted)
        return [self._to_job(async_job) for async_job in submitted]

    def submit_all(
        self, jobs: Document | DocumentSource | Sequence[Document | DocumentSource], *, dry_run: bool = False
    ) -> Jobs:
        """Like `submit`, but always return a list."""
        submitted = self._loop.call(self._client.submit_all(jobs, dry_run=dry_run))
        return [self._to_job(async_job) for async_job in submitted]

    def fork(
        self,
        name: str,
        step: int,
        new_name: str,
        overrides: Sequence[str] = (),
        namespace: str | None = None,
        *,
        dry_run: bool = False,
    ) -> Job:
        """Submit a new job that starts from a checkpoint of job `name`, which is only read.

        See `AsyncAlignmentClient.fork`.
        """
        return self._to_job(
            self._loop.call(self._client.fork(name, step, new_name, overrides, namespace, dry_run=dry_run))
        )

    def get(self, name: str, namespace: str | None = None) -> Job:
        """Return a job. Raises JobNotFound."""
        return self._to_job(self._loop.call(self._client.get(name, namespace)))

    def list(
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

        See `AsyncAlignmentClient.list`.
        """
        jobs = self._loop.call(
            self._client.list(
                namespace,
                all_namespaces=all_namespaces,
                label_selector=label_selector,
                search=search,
                phases=phases,
                algorithms=algorithms,
                sort=sort,
                limit=limit,
            )
        )
        return [self._to_job(async_job) for async_job in jobs]

    def changes(self, name: str, namespace: str | None = None) -> Iterator[Job]:
        """Yield the job as it is now, then after each change. Ends when the job is deleted."""
        for job in self._loop.iterate(self._client.changes(name, namespace)):
            yield self._to_job(job)

    def wait(
        self,
        name: str,
        timeout: float | None = None,
        on_change: Callable[[Job], object] | None = None,
        until: str = JobPhase.SUCCEEDED,
        namespace: str | None = None,
    ) -> Job:
        """Return once the job is in the phase `until`, or past it.

        See `AsyncAlignmentClient.wait`.
        """
        phase = parse_phase(until)
        last: Job | None = None
        changes = self._loop.iterate(self._client.changes(name, namespace), timeout)
        try:
            for changed in changes:
                last = self._to_job(changed)
                # Called in the caller's thread, not in the client's: the callback may use the client.
                if on_change is not None:
                    on_change(last)
                if has_reached(last.record, phase):
                    return last
        except TimeoutError:
            assert timeout is not None
            record = None if last is None else last.record
            raise WaitTimeout(timeout_message(record, name, phase, timeout)) from None
        finally:
            changes.close()
        raise JobNotFound(f"{name} was deleted while it was waited for")

    def logs(
        self,
        name: str,
        role: str | None = None,
        process: str | None = None,
        follow: bool = False,
        tail: int | None = None,
        namespace: str | None = None,
        previous: bool = False,
    ) -> Iterator[LogLine]:
        """Yield log lines of one process (trainer-0), of all processes of a role (rollout), or of all
        processes.

        See `AsyncAlignmentClient.logs`.
        """
        return self._loop.iterate(self._client.logs(name, role, process, follow, tail, namespace, previous))

    def metrics(self, name: str, namespace: str | None = None) -> MetricsTable:
        """Return the metrics of the job, one row per step."""
        return self._loop.call(self._client.metrics(name, namespace))

    def samples(
        self, name: str, step: int | None = None, count: int = 8, namespace: str | None = None
    ) -> Sequence[SampleRecord]:
        """Return the last `count` responses of the policy, newest first; only those of `step` if given."""
        return self._loop.call(self._client.samples(name, step, count, namespace))

    def events(self, name: str, namespace: str | None = None) -> Sequence[JobEvent]:
        """Return the events of the job, oldest first."""
        return self._loop.call(self._client.events(name, namespace))

    def processes(self, name: str, namespace: str | None = None) -> Sequence[ProcessRecord]:
        """Return the processes of the job, with their heartbeats."""
        return self._loop.call(self._client.processes(name, namespace))

    def scale(self, name: str, replicas: int, namespace: str | None = None, *, group: str = ROLLOUT) -> Job:
        """Set the number of rollout workers, or of another group of workers: environment, and on this machine
        also reward-NAME, reference, teacher or teacher-NAME. Raises NotPossible for a job without them.
        """
        return self._to_job(self._loop.call(self._client.scale(name, replicas, namespace, group=group)))

    def suspend(self, name: str, namespace: str | None = None) -> Job:
        """Suspend the job: it saves a checkpoint and releases its resources, and is Suspending until then."""
        return self._to_job(self._loop.call(self._client.suspend(name, namespace)))

    def resume(self, name: str, namespace: str | None = None) -> Job:
        """Resume a suspended job from its last checkpoint."""
        return self._to_job(self._loop.call(self._client.resume(name, namespace)))

    def retry(self, name: str, namespace: str | None = None) -> Job:
        """Start a failed job again from its last checkpoint, with a new restart budget.

        See `AsyncAlignmentClient.retry`.
        """
        return self._to_job(self._loop.call(self._client.retry(name, namespace)))

    def patch(self, name: str, patch: Mapping[str, Any], namespace: str | None = None) -> Job:
        """Change mutable fields of the job by a JSON merge patch. Raises JobInvalid, Conflict."""
        return self._to_job(self._loop.call(self._client.patch(name, patch, namespace)))

    def delete(self, name: str, namespace: str | None = None) -> None:
        """Delete the job and everything that it owns.

        See `AsyncAlignmentClient.delete`.
        """
        self._loop.call(self._client.delete(name, namespace))

    def result(self, name: str, into: Path | str | None = None, namespace: str | None = None) -> Path:
        """Return a folder on this machine with the result, in Hugging Face layout.

        See `AsyncAlignmentClient.result`.
        """
        return self._loop.call(self._client.result(name, into, namespace))

    def load_result(
        self, name: str, into: Path | str | None = None, namespace: str | None = None, **arguments: Any
    ) -> Result:
        """Load the result's model and tokenizer. `arguments` are passed to the model's from_pretrained."""
        return self._loop.call(self._client.load_result(name, into, namespace, **arguments))

    def close(self) -> None:
        if not self._loop.is_closed:
            try:
                self._loop.call(self._client.close())
            finally:
                self._loop.close()

    def __enter__(self) -> "AlignmentClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @classmethod
    def _from_async(cls, client: AsyncAlignmentClient) -> "AlignmentClient":
        instance = cls.__new__(cls)
        instance._start(client)
        return instance

    def _start(self, client: AsyncAlignmentClient) -> None:
        self._client = client
        self._loop = EventLoopThread()
        try:
            self._loop.call(client.backend())
        except BaseException:
            self._loop.close()
            raise

    def _to_job(self, job: AsyncJob) -> Job:
        return Job(self, job.record)
