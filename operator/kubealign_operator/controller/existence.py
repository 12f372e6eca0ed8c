"""Which of a job's objects besides pods exist.

They are asked for by name and never listed: so the operator needs no right to list every Secret and ConfigMap
of the cluster. What was seen or made is remembered until it is asked again; a new job has none.
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
    """By uid of the job. `seconds`: how long an answer is believed."""

    def __init__(self, api: Api, seconds: float) -> None:
        self._api = api
        self._seconds = seconds
        self._known: dict[str, set[Named]] = {}
        self._asked: dict[str, float] = {}

    async def of(self, key: Key, held: HeldJob) -> frozenset[Named]:
        """(kind, name) of each. Raises what Api raises."""
        if held.uid not in self._asked:
            # A job that was never looked at has nothing yet: saves it four calls.
            fresh = not held.status
            self._known.setdefault(held.uid, set())
            self._asked[held.uid] = time.monotonic() if fresh else float("-inf")
        if time.monotonic() - self._asked[held.uid] > self._seconds:
            wanted = _objects(key.name)
            found = await asyncio.gather(*(self._there(key, held.uid, one) for one in wanted))
            self._known[held.uid] = {one for one, there in zip(wanted, found, strict=True) if there}
            self._asked[held.uid] = time.monotonic()
        return frozenset(self._known[held.uid])

    def made(self, uid: str, kind: str, name: str) -> None:
        """It is there now."""
        self._known.setdefault(uid, set()).add((kind, name))

    def keep_only(self, uids: set[str]) -> None:
        """Forget the jobs that are gone."""
        for uid in self._asked.keys() - uids:
            self._asked.pop(uid, None)
            self._known.pop(uid, None)

    async def _there(self, key: Key, uid: str, wanted: Named) -> bool:
        kind, name = wanted
        resource = OWNED[kind]
        try:
            found = await self._api.get(resource, resource.named(key.namespace, name), METADATA_ONLY)
        except ApiFailure as error:
            if error.missing:
                return False
            raise
        return owner_uid(found["metadata"]) == uid


def _objects(job: str) -> tuple[Named, ...]:
    return (
        (SECRETS.kind, names.credentials(job)),
        (CONFIG_MAPS.kind, names.document(job)),
        (SERVICES.kind, names.peers(job)),
        (NETWORK_POLICIES.kind, names.peers(job)),
    )
