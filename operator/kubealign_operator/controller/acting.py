"""Does what was rendered, in an order that may be cut off anywhere: status, deletions, stops, creations."""

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

#: Told (key, uid, password) when a job's credentials were made.
Issued = Callable[[Key, str, str], None]
#: Told (job, events) once the status that they belong to is written.
Announce = Callable[[Json, tuple[Event, ...]], None]

# Of what the server answers to a creation, these are about the request itself, not about the moment.
_REFUSALS = (HTTPStatus.BAD_REQUEST, HTTPStatus.FORBIDDEN, HTTPStatus.UNPROCESSABLE_ENTITY)
_STOP_SECONDS = 1


class Stale(Exception):
    """The job has changed since it was looked at: look again."""


@dataclass
class Done:
    """What came of it."""

    #: Something was changed in the cluster.
    wrote: bool = False
    #: Name -> why the server refused to create it.
    refused: dict[str, str] = field(default_factory=dict)


class Actor:
    """Writes, and puts the answers into the caches. `act` raises Stale, and what Api raises."""

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
        done = Done()
        await self._patch_status(key, held, wanted, done)
        self._announce(held.job, wanted.events)
        if wanted.credentials is not None:
            await self._issue(key, held, wanted.credentials, done)
        await _all(self._delete(key, deletion, done) for deletion in wanted.delete)
        await _all(self._stop(key, stop, done) for stop in wanted.stop)
        # Pods last: what they mount is there when their node looks for it.
        others = [item for item in wanted.create if item["kind"] != PODS.kind]
        await _all(self._create(key, held, manifest, done) for manifest in others)
        pods = [item for item in wanted.create if item["kind"] == PODS.kind]
        await _all(self._create(key, held, manifest, done) for manifest in pods)
        if wanted.delete_job:
            await self._delete_job(key, held, done)
        return done

    async def _patch_status(self, key: Key, held: HeldJob, wanted: Rendered, done: Done) -> None:
        change = difference(held.status, wanted.status)
        if not change:
            return
        # uid and version: an old view writes nothing, neither to this job nor to a later one of its name.
        seen = {"uid": held.uid, "resourceVersion": held.job["metadata"]["resourceVersion"]}
        path = f"{JOBS.named(key.namespace, key.name)}/status"
        try:
            answer = await self._api.merge_patch(
                JOBS, path, {"metadata": seen, "status": change}, FIELD_MANAGER
            )
        except ApiFailure as error:
            if error.conflict or error.missing:
                raise Stale(str(error)) from error
            raise
        done.wrote = True
        self._jobs.written(answer)

    async def _issue(self, key: Key, held: HeldJob, need: CredentialsNeed, done: Done) -> None:
        made = credentials.make(need, key.name, self._redis_ca)
        if await self._create(key, held, made.manifest, done):
            self._issued(key, held.uid, made.redis_password)

    async def _delete(self, key: Key, wanted: Deletion, done: Done) -> None:
        options: dict[str, Any] = {"preconditions": {"uid": wanted.uid}}
        if wanted.grace_seconds is not None:
            options["gracePeriodSeconds"] = wanted.grace_seconds
        answer = await self._unless_gone(
            self._api.delete(PODS, PODS.named(key.namespace, wanted.name), options)
        )
        self._pod_written(answer, done)

    async def _stop(self, key: Key, wanted: Stop, done: Done) -> None:
        body = {"metadata": {"uid": wanted.uid}, "spec": {"activeDeadlineSeconds": _STOP_SECONDS}}
        path = PODS.named(key.namespace, wanted.name)
        answer = await self._unless_gone(self._api.merge_patch(PODS, path, body, FIELD_MANAGER))
        self._pod_written(answer, done)

    async def _create(self, key: Key, held: HeldJob, manifest: Json, done: Done) -> bool:
        """True: made now. What the server refuses for good is noted, not raised."""
        resource, name = OWNED[manifest["kind"]], manifest["metadata"]["name"]
        try:
            made = await self._api.create(
                resource,
                resource.collection(key.namespace),
                manifest,
                FIELD_MANAGER,
                PLAIN if resource is PODS else METADATA_ONLY,
            )
        except ApiFailure as error:
            if error.conflict:
                await self._occupied(key, held, manifest, done)
            elif error.status in _REFUSALS:
                done.refused[name] = error.message or error.reason
            elif not error.missing:  # the namespace itself went away: so will the job
                raise
            return False
        done.wrote = True
        if resource is PODS:
            self._pods.written(made)
        else:
            self._existence.made(held.uid, resource.kind, name)
        return True

    async def _occupied(self, key: Key, held: HeldJob, manifest: Json, done: Done) -> None:
        """The name is taken: by ourselves (an answer that was lost), by the past, or by somebody else."""
        resource, name = OWNED[manifest["kind"]], manifest["metadata"]["name"]
        try:
            found = await self._api.get(resource, resource.named(key.namespace, name), METADATA_ONLY)
        except ApiFailure as error:
            if error.missing:
                raise Stale(f"{resource.kind} {name} went away while it was made") from error
            raise
        owner = owner_uid(found["metadata"])
        if owner == held.uid and resource is not PODS:
            self._existence.made(held.uid, resource.kind, name)
        elif owner is not None and owner != held.uid:
            done.refused[name] = (
                f"{resource.kind} {name} of an earlier job of this name is still being deleted"
            )
        elif owner is None:
            done.refused[name] = (
                f"there is a {resource.kind} {name} that does not belong to this job: delete it, "
                "or give the job another name"
            )

    async def _delete_job(self, key: Key, held: HeldJob, done: Done) -> None:
        options = {"preconditions": {"uid": held.uid}, "propagationPolicy": "Background"}
        await self._unless_gone(self._api.delete(JOBS, JOBS.named(key.namespace, key.name), options))
        done.wrote = True

    def _pod_written(self, answer: Json | None, done: Done) -> None:
        if answer is not None:
            done.wrote = True
            if answer.get("kind") == PODS.kind:
                self._pods.written(answer)

    async def _unless_gone(self, call: Any) -> Json | None:
        """None: it is gone, or another has its name now."""
        try:
            answer: Json = await call
        except ApiFailure as error:
            if error.missing or error.conflict:
                return None
            raise
        return answer


async def _all(calls: Iterable[Any]) -> None:
    """At the same time; every one is tried, then the first failure is raised."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
