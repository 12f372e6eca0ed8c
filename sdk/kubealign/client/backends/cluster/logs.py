"""Logs of a job's pods: the existing ones, or followed across restarts until the job has finished."""

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any

from kubealign.backoff import Backoff
from kubealign.client.backends.cluster.processes import (
    failed_pods,
    has_started,
    is_leftover,
    newest_pods,
    pod_role,
    process_name,
    process_names,
)
from kubealign.client.errors import KubealignError, NotPossible, Unavailable
from kubealign.client.records import JobRef, LogLine
from kubealign.kube.api import Json, KubernetesApi
from kubealign.kube.errors import ObjectNotFound
from kubealign.kube.resources import PODS
from kubealign.kube.watch import UNAVAILABLE_TIMEOUT_SECONDS, list_all, watch_changes
from kubealign.labels import MAIN_CONTAINER, UID_LABEL

_QUEUE_SIZE = 1000
#: Time after the job's end in which terminating pods may still write.
_DRAIN_TIMEOUT_SECONDS = 60.0
_INITIAL_BACKOFF_SECONDS, _MAX_BACKOFF_SECONDS = 0.2, 5.0
_END_OF_LOGS: LogLine | None = None
#: Process of a JSON log line, among its first fields.
_PROCESS_FIELD = re.compile(r'^\{"time":[^{}]*?"process":"([^"]+)"')


@dataclass(frozen=True)
class LogSelection:
    """The log lines that are requested; None: no restriction.

    Attributes:
        tail: Number of existing lines of each process; of a pod with several processes, as many lines of all
            together as that makes.
    """

    process: str | None = None
    role: str | None = None
    tail: int | None = None

    def describe(self) -> str:
        """Return the words for the selected processes."""
        if self.process is not None:
            return f"process {self.process}"
        return "any process" if self.role is None else f"a process with the role {self.role}"

    def includes_pod(self, pod: Json) -> bool:
        names = process_names(pod)
        return bool(names) and self.process in (None, *names) and self.role in (None, pod_role(pod))

    def includes_line(self, line: LogLine) -> bool:
        return self.process in (None, line.process)


def job_pods_query(uid: str) -> Mapping[str, str | int]:
    """Return the query that selects the pods of a job."""
    return {"labelSelector": f"{UID_LABEL}={uid}"}


async def read_logs(
    api: KubernetesApi, ref: JobRef, uid: str, selection: LogSelection
) -> AsyncGenerator[LogLine]:
    """Yield the existing log lines of the present attempts, one pod after the other."""
    pods, _ = await list_all(api, PODS.collection_path(ref.namespace), job_pods_query(uid))
    async with aclosing(_read_pods(api, newest_pods(pods), selection)) as lines:
        async for line in lines:
            yield line


async def read_previous_logs(
    api: KubernetesApi, ref: JobRef, uid: str, selection: LogSelection, *, finished: bool
) -> AsyncGenerator[LogLine]:
    """Yield the log lines of the last failed attempts, one pod after the other.

    Args:
        finished: The job has finished.

    Raises:
        NotPossible: No pod of such an attempt is kept.
    """
    pods, _ = await list_all(api, PODS.collection_path(ref.namespace), job_pods_query(uid))
    failed = [pod for pod in failed_pods(pods, finished=finished) if selection.includes_pod(pod)]
    if not failed:
        raise NotPossible(
            f"job {ref} has no log of a failed attempt of {selection.describe()}: none has failed since the "
            "job was started, resumed or retried, or the failed pod was deleted, as with its node"
        )
    async with aclosing(_read_pods(api, failed, selection)) as lines:
        async for line in lines:
            yield line


async def _read_pods(
    api: KubernetesApi, pods: Sequence[Json], selection: LogSelection
) -> AsyncGenerator[LogLine]:
    for pod in sorted((pod for pod in pods if selection.includes_pod(pod)), key=process_name):
        if has_started(pod):
            with suppress(ObjectNotFound):
                async with aclosing(_PodLog(api, pod, selection.tail).lines(follow=False)) as lines:
                    async for line in lines:
                        if selection.includes_line(line):
                            yield line


async def follow_logs(
    api: KubernetesApi,
    ref: JobRef,
    uid: str,
    selection: LogSelection,
    job_finished: asyncio.Event,
) -> AsyncGenerator[LogLine]:
    """Yield log lines as they are written, including pods that start later.

    Ends once `job_finished` is set and all logs are drained.
    """
    lines: asyncio.Queue[LogLine | None] = asyncio.Queue(_QUEUE_SIZE)
    work = asyncio.create_task(_LogFollower(api, ref, uid, selection, lines).run(job_finished))
    try:
        while True:
            line = await lines.get()
            if line is None:
                break
            yield line
        await work
    finally:
        work.cancel()
        await asyncio.wait([work])


class _LogFollower:
    """Follows all pods of a job.

    One task per pod writes into one bounded queue, which applies backpressure: a slow consumer slows the
    readers down.
    """

    def __init__(
        self,
        api: KubernetesApi,
        ref: JobRef,
        uid: str,
        selection: LogSelection,
        lines: asyncio.Queue[LogLine | None],
    ) -> None:
        self._api, self._ref, self._uid = api, ref, uid
        self._selection, self._lines = selection, lines
        self._readers: dict[str, asyncio.Task[None]] = {}
        #: Pods of earlier attempts that are kept for their logs.
        self._skipped: set[str] = set()
        self._is_first_pass = True
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, job_finished: asyncio.Event) -> None:
        """Follow all pods.

        The queue's last entry is None, also after a failure, but not after a cancellation.
        """
        try:
            await self._follow_until(job_finished)
            pods, _ = await list_all(self._api, self._path, job_pods_query(self._uid))
            for pod in pods:
                self._start_reader(pod)
            if self._readers:
                done, _ = await asyncio.wait(self._readers.values(), timeout=_DRAIN_TIMEOUT_SECONDS)
                for reader in done:
                    reader.result()
        finally:
            for reader in self._readers.values():
                reader.cancel()
            await asyncio.gather(*self._readers.values(), return_exceptions=True)
            self._failure.cancel()
            task = asyncio.current_task()
            if task is None or not task.cancelling():
                # After a cancellation nothing reads the queue, so a put could block forever.
                await self._lines.put(_END_OF_LOGS)

    @property
    def _path(self) -> str:
        return PODS.collection_path(self._ref.namespace)

    async def _follow_until(self, job_finished: asyncio.Event) -> None:
        pods_task = asyncio.create_task(self._watch_pods())
        finished_task = asyncio.create_task(job_finished.wait())
        try:
            await asyncio.wait((pods_task, finished_task, self._failure), return_when=asyncio.FIRST_COMPLETED)
            if pods_task.done():
                pods_task.result()
            if self._failure.done():
                self._failure.result()
        finally:
            for task in (pods_task, finished_task):
                task.cancel()
            await asyncio.gather(pods_task, finished_task, return_exceptions=True)

    async def _watch_pods(self) -> None:
        pods, _ = await list_all(self._api, self._path, job_pods_query(self._uid))
        newest = newest_pods(pods)
        self._skipped = {pod["metadata"]["uid"] for pod in pods} - {pod["metadata"]["uid"] for pod in newest}
        for pod in newest:
            self._start_reader(pod)
        # `tail` limits existing logs only: every line of a later pod is new.
        self._is_first_pass = False
        known_pods = {str(pod["metadata"]["uid"]): pod for pod in pods}
        async with aclosing(
            watch_changes(self._api, self._path, job_pods_query(self._uid), known_objects=known_pods)
        ) as pod_changes:
            async for change in pod_changes:
                if not change.is_deleted:
                    self._start_reader(change.item)

    def _start_reader(self, pod: Json) -> None:
        uid = str(pod["metadata"]["uid"])
        if (
            uid in self._readers
            or uid in self._skipped
            or is_leftover(pod)
            or not self._selection.includes_pod(pod)
            or not has_started(pod)
        ):
            return
        log = _PodLog(self._api, pod, self._selection.tail if self._is_first_pass else None)
        self._readers[uid] = asyncio.create_task(self._read(log))

    async def _read(self, log: "_PodLog") -> None:
        try:
            async with aclosing(log.lines(follow=True)) as lines:
                async for line in lines:
                    if self._selection.includes_line(line):
                        await self._lines.put(line)
        except ObjectNotFound:
            # The pod was deleted before the request; the log of its replacement is read.
            return
        except KubealignError as error:
            # The consumer must not wait for lines that can no longer be read.
            if not self._failure.done():
                self._failure.set_exception(error)
            raise


class _PodLog:
    """Log of one pod's main container. The container starts once: after a crash the pod is replaced."""

    def __init__(self, api: KubernetesApi, pod: Json, tail: int | None) -> None:
        self._api = api
        metadata = pod["metadata"]
        self._processes = process_names(pod)
        self._tail = None if tail is None else tail * len(self._processes)
        self._pod = PODS.object_path(metadata["namespace"], metadata["name"])
        self._uid = str(metadata["uid"])
        #: Timestamp of the last line, as written by the node: the resume position after a disconnection.
        self._last_timestamp = ""

    async def lines(self, *, follow: bool) -> AsyncGenerator[LogLine]:
        """Yield the log lines. Raises ObjectNotFound if the pod was deleted before its log was requested."""
        loop = asyncio.get_running_loop()
        backoff = Backoff(_INITIAL_BACKOFF_SECONDS, _MAX_BACKOFF_SECONDS, jitter=0.0)
        last_response = loop.time()
        while True:
            try:
                resume_after = self._last_timestamp
                async with aclosing(self._api.stream_lines(f"{self._pod}/log", self._query(follow))) as lines:
                    async for stamped in lines:
                        last_response = loop.time()
                        backoff.reset()
                        timestamp, _, text = stamped.partition(" ")
                        if not timestamp[:4].isdecimal():
                            # A message of the node itself, such as that the log was removed.
                            yield self._line(stamped)
                        elif not resume_after or _is_later(timestamp, resume_after):
                            # sinceTime has a resolution of seconds: the first lines may be repeated.
                            self._last_timestamp = timestamp
                            yield self._line(text)
                if not follow or await self._has_ended():
                    return
            except Unavailable:
                if not follow or loop.time() - last_response > UNAVAILABLE_TIMEOUT_SECONDS:
                    raise
            # The container still runs, so the connection was lost.
            await asyncio.sleep(backoff.next_delay())

    def _line(self, text: str) -> LogLine:
        """Return the line with the process that has written it; the first one if the line does not say so."""
        if len(self._processes) > 1 and (match := _PROCESS_FIELD.search(text)):
            return LogLine(match[1] if match[1] in self._processes else self._processes[0], text)
        return LogLine(self._processes[0], text)

    def _query(self, follow: bool) -> dict[str, str | int]:
        query: dict[str, str | int] = {"container": MAIN_CONTAINER, "timestamps": "true"}
        if follow:
            query["follow"] = "true"
        if self._last_timestamp:
            query["sinceTime"] = f"{self._last_timestamp[:19]}Z"
        elif self._tail is not None:
            query["tailLines"] = self._tail
        return query

    async def _has_ended(self) -> bool:
        try:
            pod = await self._api.get(self._pod)
        except ObjectNotFound:
            return True
        state = _container_state(pod)
        return str(pod["metadata"].get("uid")) != self._uid or "running" not in state


def _is_later(timestamp: str, last: str) -> bool:
    """Compare two RFC 3339 timestamps in UTC, whose fractions may differ in length."""
    return _timestamp_key(timestamp) > _timestamp_key(last)


def _timestamp_key(timestamp: str) -> tuple[str, str]:
    seconds, _, fraction = timestamp.removesuffix("Z").partition(".")
    return seconds, fraction.ljust(9, "0")


def _container_state(pod: Json) -> Mapping[str, Any]:
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        if status.get("name") == MAIN_CONTAINER:
            state: Mapping[str, Any] = status.get("state") or {}
            return state
    return {}


def no_such_process(
    ref: JobRef, process: str | None, role: str | None, process_names: list[str]
) -> NotPossible:
    """Return the error for a process or role that the job does not have."""
    target = f"process {process}" if process else f"process with the role {role}"
    return NotPossible(f"job {ref} has no {target}: it has {', '.join(sorted(process_names)) or 'none yet'}")
