"""Mirrors objects of the API server into a store: a paged list, then a watch that resumes after it.

The official client's SharedInformer was measured and rejected: it keeps complete objects (six thousand
pods take more memory than the operator may have), lists in one response, reconnects at once to a server
that is down, and has no deadline for a silent connection. Here objects are reduced before they are stored,
pages are small, bookmarks advance the resume point, and every failure has an exponential backoff.
"""

import asyncio
import logging
import random
from dataclasses import dataclass
from typing import Protocol

from kubealign.kube.resources import ApiResource, resource_version
from kubealign_operator.controller.kube.api import Api, Json
from kubealign_operator.controller.kube.errors import ApiStatusError, ApiUnavailable
from kubealign_operator.controller.metrics import OperatorMetrics

log = logging.getLogger(__name__)

_PAGE_SIZE = 100
# The server ends a watch itself, so that another of its replicas may take the next one.
_WATCH_SECONDS = 300
# A bookmark arrives every minute: a longer silence means a broken connection.
_SILENCE_TIMEOUT_SECONDS = 90.0
_RELIST_RETRY_SECONDS = 10.0
_MIN_BACKOFF, _MAX_BACKOFF = 0.1, 10.0


class ObjectStore(Protocol):
    """Receives the objects of the API server in the order of their versions."""

    def put(self, item: Json) -> None:
        """Add or replace the object."""

    def remove(self, item: Json) -> None:
        """Remove the object."""

    def sweep(self, namespace: str | None, uids: set[str], listed_version: int) -> None:
        """Remove the objects that are older than a list and not in it.

        Args:
            uids: uids in the list.
            listed_version: resourceVersion of the list.
        """

    def advance_to(self, namespace: str | None, version: int) -> None:
        """Record that all events up to this version were delivered."""


@dataclass(frozen=True)
class Scope:
    """The watched objects: a kind, in one namespace (None: all), with these labels."""

    resource: ApiResource
    namespace: str | None = None
    labels: str | None = None

    @property
    def path(self) -> str:
        return self.resource.collection_path(self.namespace)

    @property
    def query(self) -> dict[str, str | int]:
        return {"labelSelector": self.labels} if self.labels else {}


class Reflector:
    """Mirrors one scope. `synced` is set once the first list is stored."""

    def __init__(
        self, api: Api, scope: Scope, store: ObjectStore, metrics: OperatorMetrics, resync_seconds: float
    ) -> None:
        self.synced = asyncio.Event()
        self._api = api
        self._scope = scope
        self._store = store
        self._metrics = metrics
        self._resync_seconds = resync_seconds
        self._version = 0
        self._backoff = _MIN_BACKOFF

    async def run(self) -> None:
        """Mirror until cancelled."""
        loop = asyncio.get_running_loop()
        must_list = True
        while True:
            if await self._list():
                self.synced.set()
                # Jitter: not all kinds and namespaces at the same time.
                seconds = self._resync_seconds * random.uniform(0.9, 1.1)
            elif must_list:
                continue
            else:
                # The list was only a resync: continuing the watch matters more than repeating it.
                seconds = min(self._resync_seconds, _RELIST_RETRY_SECONDS)
            until = loop.time() + seconds
            must_list = False
            while not must_list and (remaining := until - loop.time()) > 0:
                must_list = not await self._watch(min(remaining, _WATCH_SECONDS))

    async def _list(self) -> bool:
        """List all objects. False: the list failed, and the backoff has passed."""
        uids: set[str] = set()
        query = {**self._scope.query, "limit": _PAGE_SIZE}
        try:
            while True:
                page = await self._api.list(self._scope.resource, self._scope.path, query)
                for item in page["items"]:
                    uids.add(item["metadata"]["uid"])
                    self._store.put(item)
                listed_version = resource_version(page["metadata"])
                continue_token = page["metadata"].get("continue")
                if not continue_token:
                    break
                query["continue"] = continue_token
        except (ApiStatusError, ApiUnavailable) as error:
            await self._back_off("list", error)
            return False
        self._metrics.record_list(self._scope.resource.plural)
        self._store.sweep(self._scope.namespace, uids, listed_version)
        self._advance_to(listed_version)
        self._backoff = _MIN_BACKOFF
        return True

    async def _watch(self, seconds: float) -> bool:
        """Run one watch. False: the resume point has expired, and a new list is required."""
        query = {
            **self._scope.query,
            "watch": 1,
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": max(1, round(seconds)),
        }
        started = asyncio.get_running_loop().time()
        try:
            async with self._api.watch(
                self._scope.resource, self._scope.path, query, _SILENCE_TIMEOUT_SECONDS
            ) as events:
                async for event in events:
                    self._apply(event)
                    self._backoff = _MIN_BACKOFF
        except (ApiStatusError, ApiUnavailable) as error:
            if isinstance(error, ApiStatusError) and error.is_expired:
                log.info("the watch of %s has expired: listing again", self._scope.resource.plural)
                return False
            await self._back_off("watch", error)
            return True
        if asyncio.get_running_loop().time() - started < 1.0:
            # A server that ends every watch at once must not cause a busy loop.
            await self._sleep()
        return True

    def _apply(self, event: Json) -> None:
        kind, item = event.get("type"), event.get("object") or {}
        if kind == "ERROR":
            code = int(item.get("code") or 500)
            raise ApiStatusError(
                f"watch {self._scope.path}", code, str(item.get("reason")), str(item.get("message")), None
            )
        if kind in ("ADDED", "MODIFIED"):
            self._store.put(item)
        elif kind == "DELETED":
            self._store.remove(item)
        self._advance_to(resource_version(item.get("metadata") or {}))

    def _advance_to(self, new_version: int) -> None:
        self._version = max(self._version, new_version)
        self._store.advance_to(self._scope.namespace, self._version)

    async def _back_off(self, verb: str, error: ApiStatusError | ApiUnavailable) -> None:
        log.warning("%s of %s: %s", verb, self._scope.path, error)
        await self._sleep(error.retry_after or 0.0 if isinstance(error, ApiStatusError) else 0.0)

    async def _sleep(self, min_seconds: float = 0.0) -> None:
        await asyncio.sleep(max(min_seconds, self._backoff * random.uniform(0.5, 1.0)))
        self._backoff = min(2 * self._backoff, _MAX_BACKOFF)
