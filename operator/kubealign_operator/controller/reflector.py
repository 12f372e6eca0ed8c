"""Keeps a store like the API server's: a list in pages, then a watch that goes on where it was.

The official client's SharedInformer was measured and left: it keeps whole objects (six thousand pods take
more memory than the operator may have), lists in one answer, reconnects at once to a server that is down, and
has no deadline for a silent connection. Here objects are cut down before they are kept, pages are small,
bookmarks move the place to go on from, and every failure has a pause that doubles.
"""

import asyncio
import logging
import random
from dataclasses import dataclass
from typing import Protocol

from kubealign_operator.controller.api import Api, Json
from kubealign_operator.controller.failures import ApiAway, ApiFailure
from kubealign_operator.controller.metrics import Metrics
from kubealign_operator.controller.resources import Resource, version

log = logging.getLogger(__name__)

_PAGE = 100
# The server ends a watch itself: another of its replicas may then take it.
_WATCH_SECONDS = 300
# A bookmark comes each minute: longer silence is a connection that broke without a word.
_SILENCE_SECONDS = 90.0
_LIST_AGAIN_SECONDS = 10.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0


class Store(Protocol):
    """Takes what the API server says, in the order of its versions."""

    def put(self, item: Json) -> None:
        """It is there, as this says."""

    def remove(self, item: Json) -> None:
        """It is gone."""

    def sweep(self, namespace: str | None, kept: set[str], reached: int) -> None:
        """A list at version `reached` had these uids: what is older and not among them is gone."""

    def reach(self, namespace: str | None, reached: int) -> None:
        """Everything up to this version has been told."""


@dataclass(frozen=True)
class Scope:
    """What is watched: a kind, in one namespace (None: all), with these labels."""

    resource: Resource
    namespace: str | None = None
    labels: str | None = None

    @property
    def path(self) -> str:
        return self.resource.collection(self.namespace)

    @property
    def query(self) -> dict[str, str | int]:
        return {"labelSelector": self.labels} if self.labels else {}


class Reflector:
    """`synced` is set once the first list is in the store."""

    def __init__(self, api: Api, scope: Scope, store: Store, metrics: Metrics, resync_seconds: float) -> None:
        self.synced = asyncio.Event()
        self._api = api
        self._scope = scope
        self._store = store
        self._metrics = metrics
        self._resync = resync_seconds
        self._version = 0
        self._pause = _FIRST_PAUSE

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        lost = True
        while True:
            if await self._listed():
                self.synced.set()
                # Not all at the same time, nor together with the other kinds.
                seconds = self._resync * random.uniform(0.9, 1.1)
            elif lost:
                continue
            else:
                # The list was only to be sure: what the watch tells is worth more than waiting for it.
                seconds = min(self._resync, _LIST_AGAIN_SECONDS)
            until = loop.time() + seconds
            lost = False
            while not lost and (left := until - loop.time()) > 0:
                lost = not await self._watched(min(left, _WATCH_SECONDS))

    async def _listed(self) -> bool:
        """False: it did not come to an end; a pause was made."""
        kept: set[str] = set()
        query = {**self._scope.query, "limit": _PAGE}
        try:
            while True:
                page = await self._api.list(self._scope.resource, self._scope.path, query)
                for item in page["items"]:
                    kept.add(item["metadata"]["uid"])
                    self._store.put(item)
                reached = version(page["metadata"])
                follows = page["metadata"].get("continue")
                if not follows:
                    break
                query["continue"] = follows
        except (ApiFailure, ApiAway) as error:
            await self._back_off("list", error)
            return False
        self._metrics.listed(self._scope.resource.plural)
        self._store.sweep(self._scope.namespace, kept, reached)
        self._reach(reached)
        self._pause = _FIRST_PAUSE
        return True

    async def _watched(self, seconds: float) -> bool:
        """One watch. False: what happened since is forgotten, and only a list helps."""
        query = {
            **self._scope.query,
            "watch": 1,
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": max(1, round(seconds)),
        }
        began = asyncio.get_running_loop().time()
        try:
            async with self._api.watch(
                self._scope.resource, self._scope.path, query, _SILENCE_SECONDS
            ) as events:
                async for event in events:
                    self._take(event)
                    self._pause = _FIRST_PAUSE
        except (ApiFailure, ApiAway) as error:
            if isinstance(error, ApiFailure) and error.expired:
                log.info("the watch of %s is too old: listing again", self._scope.resource.plural)
                return False
            await self._back_off("watch", error)
            return True
        if asyncio.get_running_loop().time() - began < 1.0:
            # A server that ends every watch at once is not asked as fast as it answers.
            await self._sleep()
        return True

    def _take(self, event: Json) -> None:
        kind, item = event.get("type"), event.get("object") or {}
        if kind == "ERROR":
            code = int(item.get("code") or 500)
            raise ApiFailure(
                f"watch {self._scope.path}", code, str(item.get("reason")), str(item.get("message")), None
            )
        if kind in ("ADDED", "MODIFIED"):
            self._store.put(item)
        elif kind == "DELETED":
            self._store.remove(item)
        self._reach(version(item.get("metadata") or {}))

    def _reach(self, reached: int) -> None:
        self._version = max(self._version, reached)
        self._store.reach(self._scope.namespace, self._version)

    async def _back_off(self, verb: str, error: ApiFailure | ApiAway) -> None:
        log.warning("%s of %s: %s", verb, self._scope.path, error)
        await self._sleep(error.retry_after or 0.0 if isinstance(error, ApiFailure) else 0.0)

    async def _sleep(self, at_least: float = 0.0) -> None:
        await asyncio.sleep(max(at_least, self._pause * random.uniform(0.5, 1.0)))
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
