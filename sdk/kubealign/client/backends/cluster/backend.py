"""Backend that runs jobs in a cluster, through AlignmentJobs, pods, logs and events of the API server."""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from kubealign.client.backends.base import TelemetrySource
from kubealign.client.backends.cluster import events as cluster_events
from kubealign.client.backends.cluster import logs as cluster_logs
from kubealign.client.backends.cluster import processes as cluster_processes
from kubealign.client.backends.cluster.dashboard_discovery import open_telemetry
from kubealign.client.backends.cluster.documents import (
    check_not_finished,
    check_retryable,
    check_runs_here,
    check_scalable,
    validate_document,
    with_type_meta,
)
from kubealign.client.backends.cluster.labels import list_labels, store_label
from kubealign.client.backends.cluster.listing import JobLister
from kubealign.client.backends.replicas import replicas_operations
from kubealign.client.backends.worker_groups import ROLLOUT
from kubealign.client.errors import KubealignError, NotPossible, Unavailable
from kubealign.client.records import JobEvent, JobPage, JobRecord, JobRef, ListQuery, LogLine, ProcessRecord
from kubealign.client.results.fetch import fetch_result
from kubealign.client.results.reader_pod import ResultPodSettings
from kubealign.human_labels import HumanLabel
from kubealign.kube.api import Json, KubernetesApi, connect
from kubealign.kube.resources import EVENTS, JOBS, PODS
from kubealign.kube.watch import list_all, watch_changes
from kubealign.labels import FIELD_MANAGER, RETRY_ANNOTATION
from kubealign.read_model import STREAM_START, SampleRecord, StepMetrics
from kubealign.spec.status import JobPhase
from kubealign.validation_record import ValidationRecord

_DELETE_TIMEOUT_SECONDS = 120.0


class ClusterBackend:
    """JobBackend of a cluster. Closes `api`, and the telemetry source if it has a close method."""

    kind = "cluster"

    def __init__(
        self,
        api: KubernetesApi,
        telemetry: TelemetrySource,
        namespace: str,
        *,
        result_pod: ResultPodSettings | None = None,
    ) -> None:
        """Create the backend.

        Args:
            result_pod: Settings of the pod that reads a result when no pod of the job is left; by default
                they come from the environment.
        """
        self.namespace = namespace
        self._api = api
        self._telemetry = telemetry
        self._lister = JobLister(api)
        self._result_pod = result_pod or ResultPodSettings.from_environment()

    async def create(self, resource: Mapping[str, Any], *, dry_run: bool = False) -> JobRecord:
        document = validate_document(resource, self.namespace)
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
        if dry_run:
            query["dryRun"] = "All"
        created = await self._api.create(
            JOBS.collection_path(document["metadata"]["namespace"]), document, query
        )
        return JobRecord(created)

    async def get(self, ref: JobRef) -> JobRecord:
        return JobRecord(await self._api.get(_job_path(ref)))

    async def list(self, query: ListQuery) -> JobPage:
        return await self._lister.list_page(query)

    async def patch(self, ref: JobRef, patch: Mapping[str, Any]) -> JobRecord:
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
        return JobRecord(await self._api.merge_patch(_job_path(ref), dict(patch), query))

    async def delete(self, ref: JobRef) -> None:
        """Delete a job and return when it is gone; its pods terminate in the background.

        Raises Unavailable if a foreign finalizer keeps the job.
        """
        job = await self.get(ref)
        options = {"propagationPolicy": "Background", "preconditions": {"uid": job.uid}}
        await self._api.delete(_job_path(ref), options)
        try:
            async with asyncio.timeout(_DELETE_TIMEOUT_SECONDS):
                async with aclosing(self._watch_after(ref, job)) as records:
                    async for _ in records:
                        continue
        except TimeoutError as error:
            awaited = f"job {ref} to be deleted: a finalizer keeps it (kubectl get aj {ref.name} -o yaml)"
            raise Unavailable(f"waited {_DELETE_TIMEOUT_SECONDS:g} s for {awaited}") from error

    async def scale(self, ref: JobRef, replicas: int, group: str = ROLLOUT) -> JobRecord:
        job = await self.get(ref)
        check_scalable(job, group)
        if group != ROLLOUT:
            try:
                operations = replicas_operations(job.job, group, replicas)
            except LookupError as error:
                raise NotPossible(f"job {ref} {error}") from None
            query = {"fieldManager": FIELD_MANAGER}
            return JobRecord(await self._api.json_patch(_job_path(ref), operations, query))
        body = {"spec": {"replicas": replicas}}
        await self._api.merge_patch(f"{_job_path(ref)}/scale", body, {"fieldManager": FIELD_MANAGER})
        return await self.get(ref)

    async def suspend(self, ref: JobRef, suspended: bool) -> JobRecord:
        check_not_finished(await self.get(ref), "suspended" if suspended else "resumed")
        return await self.patch(ref, {"spec": {"suspend": suspended}})

    async def retry(self, ref: JobRef) -> JobRecord:
        job = await self.get(ref)
        check_retryable(job)
        # A uid is a precondition of the change: another job of the same name is left alone.
        metadata = {"uid": job.uid, "annotations": {RETRY_ANNOTATION: uuid4().hex}}
        return await self.patch(ref, {"metadata": metadata})

    async def watch(self, ref: JobRef) -> AsyncGenerator[JobRecord]:
        job = await self.get(ref)
        yield job
        async with aclosing(self._watch_after(ref, job)) as records:
            async for record in records:
                yield record

    async def _watch_after(self, ref: JobRef, job: JobRecord) -> AsyncGenerator[JobRecord]:
        """Yield the changes after `job` until that job is deleted.

        Another job of the same name ends the watch too.
        """
        query = {"fieldSelector": f"metadata.name={ref.name}"}
        known_jobs = {job.uid: dict(job.resource)}
        async with aclosing(
            watch_changes(self._api, JOBS.collection_path(ref.namespace), query, known_objects=known_jobs)
        ) as job_changes:
            async for change in job_changes:
                record = JobRecord(with_type_meta(change.item))
                if record.uid != job.uid or change.is_deleted:
                    return
                yield record

    async def processes(self, ref: JobRef) -> Sequence[ProcessRecord]:
        job = await self.get(ref)
        pods = await self._pods(job)
        names = [name for pod in pods for name in cluster_processes.process_names(pod)]
        heartbeat_by_name: Mapping[str, Mapping[str, Any]] = {}
        with suppress(KubealignError):
            # Heartbeats are optional: the pods alone suffice for the process records.
            heartbeat_by_name = await self.heartbeats(ref, names)
        suspended = job.phase in (JobPhase.SUSPENDING, JobPhase.SUSPENDED)
        return cluster_processes.to_process_records(
            pods, heartbeat_by_name, time.time(), finished=_is_finished(job), suspended=suspended
        )

    async def pods(self, ref: JobRef) -> Sequence[Json]:
        return await self._pods(await self.get(ref))

    async def logs(
        self,
        ref: JobRef,
        *,
        process: str | None = None,
        role: str | None = None,
        follow: bool = False,
        tail: int | None = None,
        previous: bool = False,
    ) -> AsyncGenerator[LogLine]:
        job = await self.get(ref)
        check_runs_here(job, "read its logs there")
        if previous and follow:
            raise NotPossible("the log of a previous attempt does not grow: read it without following it")
        selection = cluster_logs.LogSelection(process, role, tail)
        if not follow:
            pods = await self._pods(job)
            if (process or role) and not any(map(selection.includes_pod, pods)):
                names = [name for pod in pods for name in cluster_processes.process_names(pod)]
                raise cluster_logs.no_such_process(ref, process, role, names)
            lines = (
                cluster_logs.read_previous_logs(
                    self._api, ref, job.uid, selection, finished=_is_finished(job)
                )
                if previous
                else cluster_logs.read_logs(self._api, ref, job.uid, selection)
            )
            async with aclosing(lines):
                async for line in lines:
                    yield line
            return
        finished = asyncio.Event()
        finish_task = asyncio.create_task(self._signal_when_finished(ref, job, finished))
        try:
            async with aclosing(
                cluster_logs.follow_logs(self._api, ref, job.uid, selection, finished)
            ) as followed_lines:
                async for line in followed_lines:
                    yield line
            await finish_task
        finally:
            finish_task.cancel()
            await asyncio.wait([finish_task])

    async def _signal_when_finished(self, ref: JobRef, job: JobRecord, finished: asyncio.Event) -> None:
        """Set the event when the job has finished, was deleted, or can no longer be watched."""
        try:
            if not _is_finished(job):
                async with aclosing(self._watch_after(ref, job)) as records:
                    async for record in records:
                        if _is_finished(record):
                            break
        finally:
            finished.set()

    async def events(self, ref: JobRef) -> Sequence[JobEvent]:
        job, path = await self.get(ref), EVENTS.collection_path(ref.namespace)
        job_events, pod_events = await asyncio.gather(
            list_all(self._api, path, {"fieldSelector": f"regarding.uid={job.uid}"}),
            list_all(self._api, path, {"fieldSelector": "regarding.kind=Pod"}),
        )
        own_pod_events = cluster_events.select_pod_events(pod_events[0], job)
        return cluster_events.to_job_events([*job_events[0], *own_pod_events], job)

    async def labels(self, ref: JobRef) -> Sequence[HumanLabel]:
        return await list_labels(self._api, await self.get(ref))

    async def add_label(self, ref: JobRef, label: HumanLabel) -> None:
        await store_label(self._api, await self.get(ref), label)

    async def metrics(
        self, ref: JobRef, after: str = STREAM_START, count: int = 1000
    ) -> Sequence[StepMetrics]:
        return await self._telemetry.metrics(ref, after, count)

    async def samples(
        self,
        ref: JobRef,
        after: str = STREAM_START,
        count: int = 100,
        *,
        step: int | None = None,
        newest: bool = False,
    ) -> Sequence[SampleRecord]:
        return await self._telemetry.samples(ref, after, count, step=step, newest=newest)

    async def validation_samples(self, ref: JobRef, step: int) -> Sequence[ValidationRecord]:
        return await self._telemetry.validation_samples(ref, step)

    async def heartbeats(self, ref: JobRef, processes: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        return await self._telemetry.heartbeats(ref, processes)

    async def result(self, ref: JobRef, into: Path | None = None) -> Path:
        job = await self.get(ref)
        return await fetch_result(self._api, job, await self._pods(job), into, self._result_pod)

    async def close(self) -> None:
        close = getattr(self._telemetry, "close", None)
        if close is not None:
            await close()
        await self._api.close()

    async def _pods(self, job: JobRecord) -> Sequence[Json]:
        pods, _ = await list_all(
            self._api, PODS.collection_path(job.namespace), cluster_logs.job_pods_query(job.uid)
        )
        return pods


def _job_path(ref: JobRef) -> str:
    return JOBS.object_path(ref.namespace, ref.name)


def _is_finished(job: JobRecord) -> bool:
    return job.phase is not None and job.phase.is_final


async def open_cluster(
    kubeconfig: Path | str | None = None,
    context: str | None = None,
    namespace: str | None = None,
    dashboard: str | None = None,
    token: str | None = None,
) -> ClusterBackend:
    """Open the backend of a cluster; the caller must close it.

    Every argument is optional: the defaults are those of kubectl, and the dashboard is found through the
    API server.

    Args:
        token: Token for the dashboard, if the kubeconfig has none.

    Raises:
        Unavailable: No cluster was found.
        NotPossible: The kubeconfig is invalid.
    """
    api = await connect(Path(kubeconfig) if kubeconfig is not None else None, context)
    return ClusterBackend(api, open_telemetry(api, dashboard, token), namespace or api.namespace)
