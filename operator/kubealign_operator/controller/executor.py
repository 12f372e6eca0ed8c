"""Executes a plan in an order that may be interrupted anywhere: status, deletions, stops, creations."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from kubealign.kube.api import JSON_MEDIA_TYPE, METADATA_ONLY, Json, KubernetesApi
from kubealign.kube.errors import ApiStatusError
from kubealign.kube.merge_patch import merge_patch_between
from kubealign.kube.resources import JOBS, PODS, WORKLOADS
from kubealign_operator.controller import credentials
from kubealign_operator.controller.kube.ownership import OWNED, JobKey
from kubealign_operator.controller.state.cache import WatchedJob
from kubealign_operator.controller.state.cluster_state import ClusterState
from kubealign_operator.kube_views.ownership import owner_uid
from kubealign_operator.names import FIELD_MANAGER, GROUP_LABEL
from kubealign_operator.planner.plan import (
    CredentialsRequest,
    PlannedEvent,
    PodDeletion,
    PodStop,
    ReconcilePlan,
    WorkloadAdoption,
    WorkloadChange,
    WorkloadDeletion,
)

log = logging.getLogger(__name__)

#: Called with (key, uid, password, generation) when a job's credentials were created.
CredentialsIssued = Callable[[JobKey, str, str, int], None]
#: Called with (job, events) once the status to which the events belong is written.
AnnounceEvents = Callable[[Json, tuple[PlannedEvent, ...]], None]
#: Called with (job with its previous status, new status, events) once the new status is written.
StatusWritten = Callable[[Json, Mapping[str, Any], tuple[PlannedEvent, ...]], None]

# Statuses of a creation that concern the request itself: a retry of the same request does not help.
_PERMANENT_ERRORS = (HTTPStatus.BAD_REQUEST, HTTPStatus.FORBIDDEN, HTTPStatus.UNPROCESSABLE_ENTITY)
_STOP_DEADLINE_SECONDS = 1
#: Kinds of owned objects whose state a watch delivers.
_WATCHED = (PODS, WORKLOADS)
#: Writes of all jobs that wait for the API server's answer at most. Thousands at once would keep it from
#: answering other requests in time, such as the renewal of the operator's lease.
MAX_WRITES_IN_FLIGHT = 32
_QUERY = {"fieldManager": FIELD_MANAGER}


class StaleObservation(Exception):
    """The job has changed since it was observed: reconcile it again."""


@dataclass
class ExecutionResult:
    """The result of executing a plan."""

    #: True when something was changed in the cluster.
    changed: bool = False
    #: Name of an object -> error of its refused creation.
    create_errors: dict[str, str] = field(default_factory=dict)


class PlanExecutor:
    """Executes plans and stores the API server's answers in the caches."""

    def __init__(
        self,
        api: KubernetesApi,
        state: ClusterState,
        *,
        redis_ca: bytes | None,
        on_credentials_issued: CredentialsIssued,
        announce: AnnounceEvents,
        on_status_written: StatusWritten = lambda job, status, events: None,
    ) -> None:
        self._api = api
        self._state = state
        self._redis_ca = redis_ca
        self._on_credentials_issued = on_credentials_issued
        self._announce = announce
        self._on_status_written = on_status_written
        self._write_slots = asyncio.Semaphore(MAX_WRITES_IN_FLIGHT)

    async def execute(self, key: JobKey, job: WatchedJob, plan: ReconcilePlan) -> ExecutionResult:
        """Execute the plan of one job.

        Raises:
            StaleObservation: The job has changed since it was observed.
            ApiStatusError: The API server refused a call.
            Unavailable: The API server did not answer in time.
            NotLeader: This replica must not write any more.
        """
        result = ExecutionResult()
        await self._patch_status(key, job, plan, result)
        self._announce(job.resource, (*plan.events, *plan.pod_events))
        if plan.credentials is not None:
            await self._create_credentials(key, job, plan.credentials, result)
        await _run_all(self._delete(key, deletion, result) for deletion in plan.delete)
        await _run_all(self._stop(key, stop, result) for stop in plan.stop)
        # Pods after other objects: their volumes must exist when the node mounts them.
        objects = [item for item in plan.create if item["kind"] not in (PODS.kind, WORKLOADS.kind)]
        await _run_all(self._create(key, job, manifest, result) for manifest in objects)
        pods = [item for item in plan.create if item["kind"] == PODS.kind]
        await self._create_pods(key, job, pods, result)
        # Workloads last: while Kueue is down the API server refuses to write them.
        await _run_all(self._change_workload(key, change, result) for change in plan.workload_changes)
        workloads = [item for item in plan.create if item["kind"] == WORKLOADS.kind]
        await _run_all(self._create(key, job, manifest, result) for manifest in workloads)
        if plan.delete_job:
            await self._delete_job(key, job, result)
        return result

    async def _patch_status(
        self, key: JobKey, tracked: WatchedJob, plan: ReconcilePlan, result: ExecutionResult
    ) -> None:
        change = merge_patch_between(tracked.status, plan.status)
        if not change:
            return
        # Preconditions: a stale view must change neither this job nor a later one of the same name.
        preconditions = {
            "uid": tracked.uid,
            "resourceVersion": tracked.resource["metadata"]["resourceVersion"],
        }
        path = f"{JOBS.object_path(key.namespace, key.name)}/status"
        try:
            answer = await self._api.merge_patch(path, {"metadata": preconditions, "status": change}, _QUERY)
        except ApiStatusError as error:
            if error.is_conflict or error.is_not_found:
                raise StaleObservation(str(error)) from error
            raise
        result.changed = True
        self._state.jobs.record_write(answer)
        self._on_status_written(tracked.resource, plan.status, plan.events)

    async def _create_credentials(
        self, key: JobKey, job: WatchedJob, need: CredentialsRequest, result: ExecutionResult
    ) -> None:
        created = credentials.create_credentials(need, key.name, self._redis_ca)
        if await self._create(key, job, created.manifest, result):
            self._on_credentials_issued(key, job.uid, created.redis_password, need.generation)

    async def _delete(self, key: JobKey, deletion: PodDeletion, result: ExecutionResult) -> None:
        options: dict[str, Any] = {"preconditions": {"uid": deletion.uid}}
        if deletion.grace_seconds is not None:
            options["gracePeriodSeconds"] = deletion.grace_seconds
        path = PODS.object_path(key.namespace, deletion.name)
        async with self._write_slots:
            answer = await self._ignore_missing(self._api.delete(path, options))
        self._record_pod(answer, result)

    async def _stop(self, key: JobKey, stop: PodStop, result: ExecutionResult) -> None:
        body = {"metadata": {"uid": stop.uid}, "spec": {"activeDeadlineSeconds": _STOP_DEADLINE_SECONDS}}
        path = PODS.object_path(key.namespace, stop.name)
        async with self._write_slots:
            answer = await self._ignore_missing(self._api.merge_patch(path, body, _QUERY))
        self._record_pod(answer, result)

    async def _change_workload(self, key: JobKey, change: WorkloadChange, result: ExecutionResult) -> None:
        """Delete a Workload, or patch it unless it has changed since it was observed."""
        path = WORKLOADS.object_path(key.namespace, change.name)
        async with self._write_slots:
            if isinstance(change, WorkloadDeletion):
                await self._ignore_missing(self._api.delete(path, {"preconditions": {"uid": change.uid}}))
            else:
                metadata: Json = {"uid": change.uid, "resourceVersion": change.resource_version}
                body: Json = {"metadata": metadata}
                if isinstance(change, WorkloadAdoption):
                    metadata["ownerReferences"] = list(change.owner_references)
                else:
                    path, body["status"] = f"{path}/status", dict(change.status)
                answer = await self._ignore_missing(self._api.merge_patch(path, body, _QUERY))
                if answer is not None:
                    self._state.kueue.workloads.record_write(answer)
        result.changed = True

    async def _create(self, key: JobKey, job: WatchedJob, manifest: Json, result: ExecutionResult) -> bool:
        """Create the object. A permanent refusal is recorded, not raised.

        Returns:
            True when the object was created now.
        """
        resource, name = OWNED[manifest["kind"]], manifest["metadata"]["name"]
        try:
            async with self._write_slots:
                created = await self._api.create(
                    resource.collection_path(key.namespace),
                    manifest,
                    _QUERY,
                    accept=JSON_MEDIA_TYPE if resource in _WATCHED else METADATA_ONLY,
                )
        except ApiStatusError as error:
            if error.is_conflict:
                await self._handle_name_conflict(key, job, manifest, result)
            elif error.status in _PERMANENT_ERRORS:
                result.create_errors[name] = error.message or error.reason
            elif not error.is_not_found:  # the namespace is being deleted, and the job with it
                raise
            return False
        result.changed = True
        if resource is PODS:
            self._state.pods.record_write(created)
        elif resource is WORKLOADS:
            self._state.kueue.workloads.record_write(created)
        else:
            self._state.owned_objects.add(job.uid, resource.kind, name)
        return True

    async def _create_pods(
        self, key: JobKey, job: WatchedJob, pods: Iterable[Json], result: ExecutionResult
    ) -> None:
        """Create the pods, each group of processes on its own: a refused group does not stop another."""
        groups: defaultdict[str, list[Json]] = defaultdict(list)
        for manifest in pods:
            groups[manifest["metadata"]["labels"][GROUP_LABEL]].append(manifest)
        await _run_all(self._create_in_batches(key, job, group, result) for group in groups.values())

    async def _create_in_batches(
        self, key: JobKey, job: WatchedJob, manifests: Sequence[Json], result: ExecutionResult
    ) -> None:
        """Create similar pods in batches of 1, 2, 4 and so on, until a batch has a refusal: a quota without
        room costs one request and not a thousand.
        """
        start, size = 0, 1
        while start < len(manifests):
            batch = manifests[start : start + size]
            if not all(await _run_all(self._create(key, job, manifest, result) for manifest in batch)):
                return
            start, size = start + size, 2 * size

    async def _handle_name_conflict(
        self, key: JobKey, job: WatchedJob, manifest: Json, result: ExecutionResult
    ) -> None:
        """Handle a taken name: by this job (a lost answer), an earlier job, or a foreign object."""
        resource, name = OWNED[manifest["kind"]], manifest["metadata"]["name"]
        try:
            existing = await self._api.get(resource.object_path(key.namespace, name), accept=METADATA_ONLY)
        except ApiStatusError as error:
            if error.is_not_found:
                raise StaleObservation(f"{resource.kind} {name} was deleted during its creation") from error
            raise
        owner = owner_uid(existing["metadata"])
        if owner == job.uid and resource not in _WATCHED:
            self._state.owned_objects.add(job.uid, resource.kind, name)
        elif owner is not None and owner != job.uid:
            result.create_errors[name] = (
                f"{resource.kind} {name} of an earlier job of this name is still being deleted"
            )
        elif owner is None:
            result.create_errors[name] = (
                f"a {resource.kind} {name} that does not belong to this job exists: delete it, "
                "or give the job another name"
            )

    async def _delete_job(self, key: JobKey, job: WatchedJob, result: ExecutionResult) -> None:
        options = {"preconditions": {"uid": job.uid}, "propagationPolicy": "Background"}
        await self._ignore_missing(self._api.delete(JOBS.object_path(key.namespace, key.name), options))
        result.changed = True

    def _record_pod(self, answer: Json | None, result: ExecutionResult) -> None:
        if answer is not None:
            result.changed = True
            if answer.get("kind") == PODS.kind:
                self._state.pods.record_write(answer)

    async def _ignore_missing(self, call: Any) -> Json | None:
        """Await the call. None: the object is gone, or another object has its name."""
        try:
            answer: Json = await call
        except ApiStatusError as error:
            if error.is_not_found or error.is_conflict:
                return None
            raise
        return answer


async def _run_all(calls: Iterable[Any]) -> list[Any]:
    """Await all calls concurrently. Return their results, or raise the first failure."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
