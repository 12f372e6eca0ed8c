"""A cluster that runs jobs: the API server's AlignmentJobs, pods, logs and events, as the caller."""

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
    """A Site. It closes `api`, and `figures` where they can be closed."""

    kind = "cluster"

    def __init__(
        self,
        api: KubernetesApi,
        figures: Figures,
        namespace: str,
        *,
        result_pod: ResultPod | None = None,
    ) -> None:
        """`result_pod`: what results are fetched with where no pod of the job is left; by default the
        environment says it."""
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
        made = await self._api.create(JOBS.collection(document["metadata"]["namespace"]), document, query)
        return JobRecord(made)

    async def get(self, ref: JobRef) -> JobRecord:
        return JobRecord(await self._api.get(_path(ref)))

    async def list(self, query: ListQuery) -> JobPage:
        return await self._listing.page(query)

    async def patch(self, ref: JobRef, patch: Mapping[str, Any]) -> JobRecord:
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
        return JobRecord(await self._api.merge_patch(_path(ref), dict(patch), query))

    async def delete(self, ref: JobRef) -> None:
        """Returns when the job is gone; its pods end in the background. Raises Unavailable where something
        (a finalizer of somebody else) keeps it."""
        job = await self.get(ref)
        options = {"propagationPolicy": "Background", "preconditions": {"uid": job.uid}}
        await self._api.delete(_path(ref), options)
        try:
            async with asyncio.timeout(_GONE_SECONDS):
                async with aclosing(self._watch(ref, job)) as records:
                    async for _ in records:
                        continue
        except TimeoutError as error:
            what = f"job {ref} to go: something keeps it (kubectl get aj {ref.name} -o yaml: finalizers)"
            raise Unavailable(f"waited {_GONE_SECONDS:g} s for {what}") from error

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
        """What comes after `job`, until that one is gone; another of its name is another job."""
        query = {"fieldSelector": f"metadata.name={ref.name}"}
        known = {job.uid: dict(job.resource)}
        async with aclosing(changes(self._api, JOBS.collection(ref.namespace), query, known=known)) as found:
            async for change in found:
                record = JobRecord(whole(change.item))
                if record.uid != job.uid or change.gone:
                    return
                yield record

    async def processes(self, ref: JobRef) -> Sequence[ProcessRecord]:
        job = await self.get(ref)
        pods = await self._pods(job)
        names = [name for pod in pods if (name := cluster_processes.process_of(pod))]
        says: Mapping[str, Mapping[str, Any]] = {}
        with suppress(KubealignError):
            # The pods are known without: what they say of themselves is the lesser part.
            says = await self.heartbeats(ref, names)
        held = job.phase in (JobPhase.SUSPENDING, JobPhase.SUSPENDED)
        return cluster_processes.processes(pods, says, time.time(), over=_over(job), held=held)

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
        wanted = cluster_logs.chosen(process, role, cluster_processes.role_of)
        if not follow:
            pods = await self._pods(job)
            if (process or role) and not any(map(wanted, pods)):
                there = [cluster_processes.process_of(pod) for pod in pods]
                raise cluster_logs.nothing_of(ref, process, role, there)
            lines = cluster_logs.written(self._api, ref, job.uid, wanted, tail)
            async with aclosing(lines):
                async for line in lines:
                    yield line
            return
        over = asyncio.Event()
        ending = asyncio.create_task(self._until_over(ref, job, over))
        try:
            async with aclosing(cluster_logs.followed(self._api, ref, job.uid, wanted, tail, over)) as coming:
                async for line in coming:
                    yield line
            await ending
        finally:
            ending.cancel()
            await asyncio.wait([ending])

    async def _until_over(self, ref: JobRef, job: JobRecord, over: asyncio.Event) -> None:
        """Also set where the job is gone, or nobody can say."""
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
        own, of_pods = await asyncio.gather(
            list_all(self._api, path, {"fieldSelector": f"regarding.uid={job.uid}"}),
            list_all(self._api, path, {"fieldSelector": "regarding.kind=Pod"}),
        )
        theirs = cluster_events.of_pods(of_pods[0], job)
        return cluster_events.events([*own[0], *theirs], ref.name, job.created)

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
