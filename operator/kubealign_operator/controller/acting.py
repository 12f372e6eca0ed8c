"""Executes a plan in an order that may be interrupted anywhere: status, deletions, stops, creations."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from kubealign_operator.controller import credentials
from kubealign_operator.controller.api import METADATA_ONLY, PLAIN, Api, Json
from kubealign_operator.controller.cache import HeldJob, Jobs, Pods
from kubealign_operator.controller.difference import difference
from kubealign_operator.controller.existence import Existence
from kubealign_operator.controller.failures import ApiFailure
from kubealign_operator.controller.resources import JOBS, OWNED, PODS, Key, owner_uid
from kubealign_operator.render.names import FIELD_MANAGER
from kubealign_operator.render.rendered import CredentialsNeed, Deletion, Event, Rendered, Stop

log = logging.getLogger(__name__)

#: Called with (key, uid, password) when a job's credentials were created.
Issued = Callable[[Key, str, str], None]
#: Called with (job, events) once the status to which the events belong is written.
Announce = Callable[[Json, tuple[Event, ...]], None]

# Statuses of a creation that concern the request itself: a retry of the same request does not help.
_REFUSALS = (HTTPStatus.BAD_REQUEST, HTTPStatus.FORBIDDEN, HTTPStatus.UNPROCESSABLE_ENTITY)
_STOP_SECONDS = 1


class Stale(Exception):
    """The job has changed since it was observed: reconcile it again."""


@dataclass
class Done:
    """The result of executing a plan."""

    #: True when something was changed in the cluster.
    wrote: bool = False
    #: Name of an object -> error of its refused creation.
    refused: dict[str, str] = field(default_factory=dict)


class Actor:
    """Executes plans and stores the API server's answers in the caches."""

    def __init__(
        self,
        api: Api,
        jobs: Jobs,
        pods: Pods,
        existence: Existence,
        *,
        redis_ca: bytes | None,
        issued: Issued,
        announce: Announce,
    ) -> None:
        self._api = api
        self._jobs = jobs
        self._pods = pods
        self._existence = existence
        self._redis_ca = redis_ca
        self._issued = issued
        self._announce = announce

    async def act(self, key: Key, held: HeldJob, wanted: Rendered) -> Done:
        """Execute the plan of one job.

        Raises:
            StaleObservation: The job has changed since it was observed.
            ApiStatusError: The API server refused a call.
            ApiUnavailable: The API server did not answer in time.
            NotLeader: This replica must not write any more.
        """
        result = Done()
        await self._patch_status(key, held, wanted, result)
        self._announce(held.job, wanted.events)
        if wanted.credentials is not None:
            await self._issue(key, held, wanted.credentials, result)
        await _all(self._delete(key, deletion, result) for deletion in wanted.delete)
        await _all(self._stop(key, stop, result) for stop in wanted.stop)
        # Pods last: their volumes must exist when the node mounts them.
        objects = [item for item in wanted.create if item["kind"] != PODS.kind]
        await _all(self._create(key, held, manifest, result) for manifest in objects)
        pods = [item for item in wanted.create if item["kind"] == PODS.kind]
        await _all(self._create(key, held, manifest, result) for manifest in pods)
        if wanted.delete_job:
            await self._delete_job(key, held, result)
        return result

    async def _patch_status(self, key: Key, tracked: HeldJob, plan: Rendered, result: Done) -> None:
        change = difference(tracked.status, plan.status)
        if not change:
            return
        # Preconditions: a stale view must change neither this job nor a later one of the same name.
        preconditions = {"uid": tracked.uid, "resourceVersion": tracked.job["metadata"]["resourceVersion"]}
        path = f"{JOBS.named(key.namespace, key.name)}/status"
        try:
            answer = await self._api.merge_patch(
                JOBS, path, {"metadata": preconditions, "status": change}, FIELD_MANAGER
            )
        except ApiFailure as error:
            if error.conflict or error.missing:
                raise Stale(str(error)) from error
            raise
        result.wrote = True
        self._jobs.written(answer)

    async def _issue(self, key: Key, job: HeldJob, need: CredentialsNeed, result: Done) -> None:
        created = credentials.make(need, key.name, self._redis_ca)
        if await self._create(key, job, created.manifest, result):
            self._issued(key, job.uid, created.redis_password)

    async def _delete(self, key: Key, deletion: Deletion, result: Done) -> None:
        options: dict[str, Any] = {"preconditions": {"uid": deletion.uid}}
        if deletion.grace_seconds is not None:
            options["gracePeriodSeconds"] = deletion.grace_seconds
        answer = await self._unless_gone(
            self._api.delete(PODS, PODS.named(key.namespace, deletion.name), options)
        )
        self._pod_written(answer, result)

    async def _stop(self, key: Key, stop: Stop, result: Done) -> None:
        body = {"metadata": {"uid": stop.uid}, "spec": {"activeDeadlineSeconds": _STOP_SECONDS}}
        path = PODS.named(key.namespace, stop.name)
        answer = await self._unless_gone(self._api.merge_patch(PODS, path, body, FIELD_MANAGER))
        self._pod_written(answer, result)

    async def _create(self, key: Key, job: HeldJob, manifest: Json, result: Done) -> bool:
        """Create the object. A permanent refusal is recorded, not raised.

        Returns:
            True when the object was created now.
        """
        resource, name = OWNED[manifest["kind"]], manifest["metadata"]["name"]
        try:
            created = await self._api.create(
                resource,
                resource.collection(key.namespace),
                manifest,
                FIELD_MANAGER,
                PLAIN if resource is PODS else METADATA_ONLY,
            )
        except ApiFailure as error:
            if error.conflict:
                await self._occupied(key, job, manifest, result)
            elif error.status in _REFUSALS:
                result.refused[name] = error.message or error.reason
            elif not error.missing:  # the namespace is being deleted, and the job with it
                raise
            return False
        result.wrote = True
        if resource is PODS:
            self._pods.written(created)
        else:
            self._existence.made(job.uid, resource.kind, name)
        return True

    async def _occupied(self, key: Key, job: HeldJob, manifest: Json, result: Done) -> None:
        """Handle a taken name: by this job (a lost answer), by an earlier job, or by somebody else's object.
        """
        resource, name = OWNED[manifest["kind"]], manifest["metadata"]["name"]
        try:
            existing = await self._api.get(resource, resource.named(key.namespace, name), METADATA_ONLY)
        except ApiFailure as error:
            if error.missing:
                raise Stale(f"{resource.kind} {name} was deleted during its creation") from error
            raise
        owner = owner_uid(existing["metadata"])
        if owner == job.uid and resource is not PODS:
            self._existence.made(job.uid, resource.kind, name)
        elif owner is not None and owner != job.uid:
            result.refused[name] = (
                f"{resource.kind} {name} of an earlier job of this name is still being deleted"
            )
        elif owner is None:
            result.refused[name] = (
                f"a {resource.kind} {name} exists that does not belong to this job: delete it, "
                "or give the job another name"
            )

    async def _delete_job(self, key: Key, job: HeldJob, result: Done) -> None:
        options = {"preconditions": {"uid": job.uid}, "propagationPolicy": "Background"}
        await self._unless_gone(self._api.delete(JOBS, JOBS.named(key.namespace, key.name), options))
        result.wrote = True

    def _pod_written(self, answer: Json | None, result: Done) -> None:
        if answer is not None:
            result.wrote = True
            if answer.get("kind") == PODS.kind:
                self._pods.written(answer)

    async def _unless_gone(self, call: Any) -> Json | None:
        """Await the call. None: the object is gone, or another object has its name."""
        try:
            answer: Json = await call
        except ApiFailure as error:
            if error.missing or error.conflict:
                return None
            raise
        return answer


async def _all(calls: Iterable[Any]) -> None:
    """Await all calls concurrently, then raise the first failure."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
