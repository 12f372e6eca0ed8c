"""Backend that runs jobs in a cluster, through AlignmentJobs, pods, logs and events of the API server."""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

from kubealign.client import cluster_events, cluster_logs, cluster_processes
from kubealign.client.cluster_documents import checked, ended, scalable, whole
from kubealign.client.cluster_listing import Listing
from kubealign.client.errors import KubealignError, Unavailable
from kubealign.client.kubernetes_api import Json, KubernetesApi
from kubealign.client.kubernetes_changes import changes, list_all
from kubealign.client.kubernetes_resources import EVENTS, JOBS, PODS
from kubealign.client.records import JobEvent, JobPage, JobRecord, JobRef, ListQuery, LogLine, ProcessRecord
from kubealign.client.result_fetch import fetched
from kubealign.client.result_pod import ResultPod
from kubealign.client.site import Figures
from kubealign.labels import FIELD_MANAGER
from kubealign.read_model import BEGINNING, Sample, StepMetrics
from kubealign.spec.status import JobPhase

_GONE_SECONDS = 120.0


class ClusterSite:
    """JobBackend of a cluster. Closes `api`, and the telemetry source if it has a close method."""

    kind = "cluster"

    def __init__(
        self,
        api: KubernetesApi,
        figures: Figures,
        namespace: str,
        *,
        result_pod: ResultPod | None = None,
    ) -> None:
        """Create the backend.

        Args:
            result_pod: Settings of the pod that reads a result when no pod of the job is left; by default
                they come
                from the environment.
        """
        self.namespace = namespace
        self._api = api
        self._figures = figures
        self._listing = Listing(api)
        self._result_pod = result_pod or ResultPod.from_environment()

    async def create(self, resource: Mapping[str, Any], *, dry_run: bool = False) -> JobRecord:
        document = checked(resource, self.namespace)
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
        if dry_run:
            query["dryRun"] = "All"
        created = await self._api.create(JOBS.collection(document["metadata"]["namespace"]), document, query)
        return JobRecord(created)

    async def get(self, ref: JobRef) -> JobRecord:
        return JobRecord(await self._api.get(_path(ref)))

    async def list(self, query: ListQuery) -> JobPage:
        return await self._listing.page(query)

    async def patch(self, ref: JobRef, patch: Mapping[str, Any]) -> JobRecord:
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
        return JobRecord(await self._api.merge_patch(_path(ref), dict(patch), query))

    async def delete(self, ref: JobRef) -> None:
        """Delete a job and return when it is gone; its pods terminate in the background.

        Raises Unavailable if a foreign finalizer keeps the job.
        """
        job = await self.get(ref)
        options = {"propagationPolicy": "Background", "preconditions": {"uid": job.uid}}
        await self._api.delete(_path(ref), options)
        try:
            async with asyncio.timeout(_GONE_SECONDS):
                async with aclosing(self._watch(ref, job)) as records:
                    async for _ in records:
                        continue
        except TimeoutError as error:
            awaited = f"job {ref} to be deleted: a finalizer keeps it (kubectl get aj {ref.name} -o yaml)"
            raise Unavailable(f"waited {_GONE_SECONDS:g} s for {awaited}") from error

    async def scale(self, ref: JobRef, replicas: int) -> JobRecord:
        scalable(await self.get(ref))
        body = {"spec": {"replicas": replicas}}
        await self._api.merge_patch(f"{_path(ref)}/scale", body, {"fieldManager": FIELD_MANAGER})
        return await self.get(ref)

    async def suspend(self, ref: JobRef, suspended: bool) -> JobRecord:
        ended(await self.get(ref), "suspended" if suspended else "resumed")
        return await self.patch(ref, {"spec": {"suspend": suspended}})

    async def watch(self, ref: JobRef) -> AsyncGenerator[JobRecord]:
        job = await self.get(ref)
        yield job
        async with aclosing(self._watch(ref, job)) as records:
            async for record in records:
                yield record

    async def _watch(self, ref: JobRef, job: JobRecord) -> AsyncGenerator[JobRecord]:
        """Yield the changes after `job` until that job is deleted.

        Another job of the same name ends the watch too.
        """
        query = {"fieldSelector": f"metadata.name={ref.name}"}
        known_jobs = {job.uid: dict(job.resource)}
        async with aclosing(changes(self._api, JOBS.collection(ref.namespace), query, known=known_jobs)) as job_changes:
            async for change in job_changes:
                record = JobRecord(whole(change.item))
                if record.uid != job.uid or change.gone:
                    return
                yield record

    async def processes(self, ref: JobRef) -> Sequence[ProcessRecord]:
        job = await self.get(ref)
        pods = await self._pods(job)
        names = [name for pod in pods if (name := cluster_processes.process_of(pod))]
        heartbeat_by_name: Mapping[str, Mapping[str, Any]] = {}
        with suppress(KubealignError):
            # Heartbeats are optional: the pods alone suffice for the process records.
            heartbeat_by_name = await self.heartbeats(ref, names)
        suspended = job.phase in (JobPhase.SUSPENDING, JobPhase.SUSPENDED)
        return cluster_processes.processes(pods, heartbeat_by_name, time.time(), over=_over(job), held=suspended)

    async def logs(
        self,
        ref: JobRef,
        *,
        process: str | None = None,
        role: str | None = None,
        follow: bool = False,
        tail: int | None = None,
    ) -> AsyncGenerator[LogLine]:
        job = await self.get(ref)
        pod_filter = cluster_logs.chosen(process, role, cluster_processes.role_of)
        if not follow:
            pods = await self._pods(job)
            if (process or role) and not any(map(pod_filter, pods)):
                names = [cluster_processes.process_of(pod) for pod in pods]
                raise cluster_logs.nothing_of(ref, process, role, names)
            lines = cluster_logs.written(self._api, ref, job.uid, pod_filter, tail)
            async with aclosing(lines):
                async for line in lines:
                    yield line
            return
        finished = asyncio.Event()
        finish_task = asyncio.create_task(self._until_over(ref, job, finished))
        try:
            async with aclosing(cluster_logs.followed(self._api, ref, job.uid, pod_filter, tail, finished)) as followed_lines:
                async for line in followed_lines:
                    yield line
            await finish_task
        finally:
            finish_task.cancel()
            await asyncio.wait([finish_task])

    async def _until_over(self, ref: JobRef, job: JobRecord, over: asyncio.Event) -> None:
        """Set the event when the job has finished, was deleted, or can no longer be watched."""
        try:
            if not _over(job):
                async with aclosing(self._watch(ref, job)) as records:
                    async for record in records:
                        if _over(record):
                            break
        finally:
            over.set()

    async def events(self, ref: JobRef) -> Sequence[JobEvent]:
        job, path = await self.get(ref), EVENTS.collection(ref.namespace)
        job_events, pod_events = await asyncio.gather(
            list_all(self._api, path, {"fieldSelector": f"regarding.uid={job.uid}"}),
            list_all(self._api, path, {"fieldSelector": "regarding.kind=Pod"}),
        )
        own_pod_events = cluster_events.of_pods(pod_events[0], job)
        return cluster_events.events([*job_events[0], *own_pod_events], ref.name, job.created)

    async def metrics(self, ref: JobRef, after: str = BEGINNING, count: int = 1000) -> Sequence[StepMetrics]:
        return await self._figures.metrics(ref, after, count)

    async def samples(
        self,
        ref: JobRef,
        after: str = BEGINNING,
        count: int = 100,
        *,
        step: int | None = None,
        newest: bool = False,
    ) -> Sequence[Sample]:
        return await self._figures.samples(ref, after, count, step=step, newest=newest)

    async def heartbeats(self, ref: JobRef, processes: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        return await self._figures.heartbeats(ref, processes)

    async def result(self, ref: JobRef, into: Path | None = None) -> Path:
        job = await self.get(ref)
        return await fetched(self._api, job, await self._pods(job), into, self._result_pod)

    async def close(self) -> None:
        close = getattr(self._figures, "close", None)
        if close is not None:
            await close()
        await self._api.close()

    async def _pods(self, job: JobRecord) -> Sequence[Json]:
        pods, _ = await list_all(self._api, PODS.collection(job.namespace), cluster_logs.of_job(job.uid))
        return pods


def _path(ref: JobRef) -> str:
    return JOBS.named(ref.namespace, ref.name)


def _over(job: JobRecord) -> bool:
    return job.phase is not None and job.phase.final
