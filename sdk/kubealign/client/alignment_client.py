"""The client for scripts and notebooks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias, overload

from kubealign.client.async_client import AsyncAlignmentClient
from kubealign.client.async_job import AsyncJob
from kubealign.client.background_loop import BackgroundLoop
from kubealign.client.errors import JobNotFound, WaitTimeout
from kubealign.client.handing_in import Document, Text
from kubealign.client.job import Job
from kubealign.client.loaded_result import Result
from kubealign.client.metrics_table import MetricsTable
from kubealign.client.records import JobEvent, LogLine, ProcessRecord
from kubealign.client.waiting import reached, still_waits, wanted_phase
from kubealign.read_model import Sample
from kubealign.spec.status import JobPhase

if TYPE_CHECKING:
    from kubealign.client.site import Site

Jobs: TypeAlias = list[Job]


class AlignmentClient:
    """Jobs of a cluster or of this machine.

    `AlignmentClient.cluster()` and `.local()` say which. Without either it is this machine where
    KUBEALIGN_RUNS_DIR is set, else the cluster. `close`, or `with`, lets go of it; jobs go on. `namespace` is
    the site's own where it is left out.

    It works in a thread of its own, so it may be used where an event loop runs already, as in a notebook. It
    does not survive a fork: make one in each process.

    Everything raises a KubealignError (kubealign.errors) that says what to do."""

    def __init__(self, site: "Site | None" = None) -> None:
        self._start(AsyncAlignmentClient(site))

    @classmethod
    def cluster(
        cls,
        kubeconfig: Path | str | None = None,
        context: str | None = None,
        namespace: str | None = None,
        dashboard: str | None = None,
        token: str | None = None,
    ) -> "AlignmentClient":
        """A cluster, as kubectl finds it: by kubeconfig, or in a pod by its service account.

        `dashboard`: the address of the cluster's dashboard, which has figures and samples; None: it is found
        through the API server. `token`: for the dashboard, where the kubeconfig has none.

        Raises Unavailable where there is no cluster to talk to."""
        return cls._of(AsyncAlignmentClient.cluster(kubeconfig, context, namespace, dashboard, token))

    @classmethod
    def local(cls, runs_dir: Path | str = "runs") -> "AlignmentClient":
        """This machine. Each job has a folder in `runs_dir`."""
        return cls._of(AsyncAlignmentClient.local(runs_dir))

    @overload
    def submit(self, job: Document, *, dry_run: bool = False) -> Job: ...
    @overload
    def submit(self, job: Text, *, dry_run: bool = False) -> Job | Jobs: ...
    @overload
    def submit(self, job: Sequence[Document | Text], *, dry_run: bool = False) -> Job | Jobs: ...
    def submit(
        self, job: Document | Text | Sequence[Document | Text], *, dry_run: bool = False
    ) -> Job | Jobs:
        """Hand in a job: an AlignmentJob, a dict, a YAML text, or a file's path. Several at once (a list, or
        a text or file with several documents) are handed in in the order of their dependencies, and come
        back as a list. `dry_run`: only check.

        Raises JobInvalid, place by place, and JobExists."""
        submitted = self._loop.call(self._client.submit(job, dry_run=dry_run))
        if isinstance(submitted, AsyncJob):
            return self._job(submitted)
        return [self._job(one) for one in submitted]

    def submit_all(self, jobs: Document | Text | Sequence[Document | Text], *, dry_run: bool = False) -> Jobs:
        """`submit`, with a list whatever is handed in."""
        submitted = self._loop.call(self._client.submit_all(jobs, dry_run=dry_run))
        return [self._job(one) for one in submitted]

    def get(self, name: str, namespace: str | None = None) -> Job:
        """Raises JobNotFound."""
        return self._job(self._loop.call(self._client.get(name, namespace)))

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
        """All jobs that match, or the first `limit` of them. `label_selector` is as kubectl's -l, `search` a
        part of the name, `sort` one of name, created, phase, step and reward, the greatest first with a -."""
        found = self._loop.call(
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
        return [self._job(one) for one in found]

    def changes(self, name: str, namespace: str | None = None) -> Iterator[Job]:
        """The job as it is now, then after each change. Ends when it is gone."""
        for job in self._loop.iterate(self._client.changes(name, namespace)):
            yield self._job(job)

    def wait(
        self,
        name: str,
        timeout: float | None = None,
        on_change: Callable[[Job], object] | None = None,
        until: str = JobPhase.SUCCEEDED,
        namespace: str | None = None,
    ) -> Job:
        """Return once the job is in the phase `until`, or past it. `timeout`: in seconds, None for ever;
        `on_change` is called with the job as it is now, and after each change.

        Raises JobFailed with the job's cause, WaitTimeout saying what the job waits for, JobNotFound when it
        is deleted meanwhile, and Conflict where it is over and never was there."""
        phase = wanted_phase(until)
        last: Job | None = None
        changes = self._loop.iterate(self._client.changes(name, namespace), timeout)
        try:
            for changed in changes:
                last = self._job(changed)
                # Called here, not in the client's thread: it may use the client.
                if on_change is not None:
                    on_change(last)
                if reached(last.record, phase):
                    return last
        except TimeoutError:
            assert timeout is not None
            record = None if last is None else last.record
            raise WaitTimeout(still_waits(record, name, phase, timeout)) from None
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
    ) -> Iterator[LogLine]:
        """Lines of one process (trainer-0), of all of a role (rollout), or of all. `follow`: until the job is
        over, also of processes that are not there yet. `tail`: only the last lines of each at first."""
        return self._loop.iterate(self._client.logs(name, role, process, follow, tail, namespace))

    def metrics(self, name: str, namespace: str | None = None) -> MetricsTable:
        """What was measured, a row a step."""
        return self._loop.call(self._client.metrics(name, namespace))

    def samples(
        self, name: str, step: int | None = None, count: int = 8, namespace: str | None = None
    ) -> Sequence[Sample]:
        """The last `count` responses of the policy, of one step where `step` says so; newest first."""
        return self._loop.call(self._client.samples(name, step, count, namespace))

    def events(self, name: str, namespace: str | None = None) -> Sequence[JobEvent]:
        """What happened to the job, oldest first."""
        return self._loop.call(self._client.events(name, namespace))

    def processes(self, name: str, namespace: str | None = None) -> Sequence[ProcessRecord]:
        """The job's processes, and what each says of itself."""
        return self._loop.call(self._client.processes(name, namespace))

    def scale(self, name: str, replicas: int, namespace: str | None = None) -> Job:
        """Have this many rollout workers. Raises NotPossible for a job without any."""
        return self._job(self._loop.call(self._client.scale(name, replicas, namespace)))

    def suspend(self, name: str, namespace: str | None = None) -> Job:
        """Have the job save and give everything back. It is Suspending until it has."""
        return self._job(self._loop.call(self._client.suspend(name, namespace)))

    def resume(self, name: str, namespace: str | None = None) -> Job:
        """Have a suspended job go on from its last commit."""
        return self._job(self._loop.call(self._client.resume(name, namespace)))

    def patch(self, name: str, patch: Mapping[str, Any], namespace: str | None = None) -> Job:
        """Change what may be changed, by a JSON merge patch. Raises JobInvalid, Conflict."""
        return self._job(self._loop.call(self._client.patch(name, patch, namespace)))

    def delete(self, name: str, namespace: str | None = None) -> None:
        """With all that it owns. In a cluster its volumes stay; on this machine its result goes too."""
        self._loop.call(self._client.delete(name, namespace))

    def result(self, name: str, into: Path | str | None = None, namespace: str | None = None) -> Path:
        """A folder on this machine with the result, as Hugging Face has them. `into`: where to put it, if it
        must be fetched. Raises NotPossible as long as there is none."""
        return self._loop.call(self._client.result(name, into, namespace))

    def load_result(
        self, name: str, into: Path | str | None = None, namespace: str | None = None, **arguments: Any
    ) -> Result:
        """The result's model and tokenizer. `arguments` go to the model's from_pretrained."""
        return self._loop.call(self._client.load_result(name, into, namespace, **arguments))

    def close(self) -> None:
        if not self._loop.closed:
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
    def _of(cls, client: AsyncAlignmentClient) -> "AlignmentClient":
        made = cls.__new__(cls)
        made._start(client)
        return made

    def _start(self, client: AsyncAlignmentClient) -> None:
        self._client = client
        self._loop = BackgroundLoop()
        try:
            self._loop.call(client.site())
        except BaseException:
            self._loop.close()
            raise

    def _job(self, job: AsyncJob) -> Job:
        return Job(self, job.record)
