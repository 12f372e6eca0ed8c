"""Tracks which objects of a job exist, other than its pods.

The objects are read by name and never listed, so the operator needs no right to list every Secret and
ConfigMap
of the cluster. An answer is cached until it expires; a new job has no objects.
"""

import asyncio
import time

from kubealign_operator.controller.api import METADATA_ONLY, Api
from kubealign_operator.controller.cache import HeldJob
from kubealign_operator.controller.failures import ApiFailure
from kubealign_operator.controller.resources import (
    CONFIG_MAPS,
    NETWORK_POLICIES,
    OWNED,
    SECRETS,
    SERVICES,
    Key,
    owner_uid,
)
from kubealign_operator.render import names

Named = tuple[str, str]


class Existence:
    """Existing objects by uid of the job. `seconds`: time to live of an answer."""

    def __init__(self, api: Api, seconds: float) -> None:
        self._api = api
        self._seconds = seconds
        self._known: dict[str, set[Named]] = {}
        self._asked: dict[str, float] = {}

    async def of(self, key: Key, held: HeldJob) -> frozenset[Named]:
        """Return (kind, name) of each existing object. Raises the errors of Api."""
        if held.uid not in self._asked:
            # A job without a status has no objects yet: this saves four calls.
            is_new = not held.status
            self._known.setdefault(held.uid, set())
            self._asked[held.uid] = time.monotonic() if is_new else float("-inf")
        if time.monotonic() - self._asked[held.uid] > self._seconds:
            expected = _objects(key.name)
            flags = await asyncio.gather(*(self._there(key, held.uid, item) for item in expected))
            self._known[held.uid] = {item for item, exists in zip(expected, flags, strict=True) if exists}
            self._asked[held.uid] = time.monotonic()
        return frozenset(self._known[held.uid])

    def made(self, uid: str, kind: str, name: str) -> None:
        """Record that the object exists."""
        self._known.setdefault(uid, set()).add((kind, name))

    def keep_only(self, uids: set[str]) -> None:
        """Forget all jobs except these."""
        for uid in self._asked.keys() - uids:
            self._asked.pop(uid, None)
            self._known.pop(uid, None)

    async def _there(self, key: Key, uid: str, item: Named) -> bool:
        kind, name = item
        resource = OWNED[kind]
        try:
            document = await self._api.get(resource, resource.named(key.namespace, name), METADATA_ONLY)
        except ApiFailure as error:
            if error.missing:
                return False
            raise
        return owner_uid(document["metadata"]) == uid


def _objects(job: str) -> tuple[Named, ...]:
    return (
        (SECRETS.kind, names.credentials(job)),
        (CONFIG_MAPS.kind, names.document(job)),
        (SERVICES.kind, names.peers(job)),
        (NETWORK_POLICIES.kind, names.peers(job)),
    )
