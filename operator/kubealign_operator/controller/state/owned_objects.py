"""Tracks which objects of a job exist, other than its pods.

The objects are read by name and never listed, so the operator needs no right to list every Secret and
ConfigMap of the cluster. An answer is cached until it expires; a new job has no objects.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from kubealign.kube.api import METADATA_ONLY, KubernetesApi
from kubealign.kube.errors import ApiStatusError
from kubealign.kube.resources import CONFIG_MAPS, NETWORK_POLICIES, SECRETS, SERVICES
from kubealign_operator import names
from kubealign_operator.controller.kube.ownership import OWNED, JobKey
from kubealign_operator.controller.state.cache import WatchedJob
from kubealign_operator.controller.state.job_views import credentials_generation, document_generation
from kubealign_operator.kube_views.ownership import owner_uid

KindAndName = tuple[str, str]


class OwnedObjects:
    """Existing objects by uid of the job. `seconds`: time to live of an answer."""

    def __init__(self, api: KubernetesApi, seconds: float) -> None:
        self._api = api
        self._ttl_seconds = seconds
        self._existing: dict[str, set[KindAndName]] = {}
        self._checked_at: dict[str, float] = {}

    async def existing(self, key: JobKey, job: WatchedJob) -> frozenset[KindAndName]:
        """Return (kind, name) of each existing object. Raises ApiStatusError or Unavailable."""
        if job.uid not in self._checked_at:
            # A job without a status has no objects yet: this saves four calls.
            is_new = not job.status
            self._existing.setdefault(job.uid, set())
            self._checked_at[job.uid] = time.monotonic() if is_new else float("-inf")
        if time.monotonic() - self._checked_at[job.uid] > self._ttl_seconds:
            # The NetworkPolicies of groups depend on the spec. After a restart of the operator they are known
            # once their creation has been refused because they exist.
            objects = _expected_objects(key.name, job.status)
            expected = sorted({*objects, *self._existing[job.uid]})
            flags = await asyncio.gather(*(self._exists(key, job.uid, item) for item in expected))
            self._existing[job.uid] = {item for item, exists in zip(expected, flags, strict=True) if exists}
            self._checked_at[job.uid] = time.monotonic()
        return frozenset(self._existing[job.uid])

    def add(self, uid: str, kind: str, name: str) -> None:
        """Record that the object exists."""
        self._existing.setdefault(uid, set()).add((kind, name))

    def keep_only(self, uids: set[str]) -> None:
        """Forget all jobs except these."""
        for uid in self._checked_at.keys() - uids:
            self._checked_at.pop(uid, None)
            self._existing.pop(uid, None)

    async def _exists(self, key: JobKey, uid: str, item: KindAndName) -> bool:
        kind, name = item
        resource = OWNED[kind]
        try:
            document = await self._api.get(resource.object_path(key.namespace, name), accept=METADATA_ONLY)
        except ApiStatusError as error:
            if error.is_not_found:
                return False
            raise
        return owner_uid(document["metadata"]) == uid


def _expected_objects(job: str, status: Mapping[str, Any]) -> tuple[KindAndName, ...]:
    return (
        (SECRETS.kind, names.credentials(job, credentials_generation(status))),
        (CONFIG_MAPS.kind, names.config_map(job, document_generation(status))),
        (SERVICES.kind, names.peers(job)),
        (NETWORK_POLICIES.kind, names.peers(job)),
    )
