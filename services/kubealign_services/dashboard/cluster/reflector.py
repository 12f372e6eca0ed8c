"""Keeps the memory of jobs like the API server's: a list in pages, then a watch that goes on where it was."""

import asyncio
import logging
import random
from contextlib import aclosing

from kubealign.client.errors import KubealignError
from kubealign.client.kubernetes_api import KubernetesApi, WatchExpired
from kubealign.client.kubernetes_resources import JOBS
from kubealign_services.dashboard.cluster.cache import JobCache
from kubealign_services.dashboard.cluster.entry import Json, version

log = logging.getLogger(__name__)

_PAGE = 200
# The server ends a watch itself: another of its replicas may then take it.
_WATCH_SECONDS = 300
# What a watch that went wrong unnoticed has left out is found by a list.
_LIST_AGAIN_SECONDS = 1800.0
_LIST_SOON_SECONDS = 10.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0


class Reflector:
    """For the jobs of one namespace (None: of all). `synced` is set once the first list is remembered;
    `trouble` says what keeps it from hearing of changes, and is empty when all is well."""

    def __init__(self, api: KubernetesApi, cache: JobCache, namespace: str | None) -> None:
        self.synced = asyncio.Event()
        self.trouble = ""
        self._api = api
        self._cache = cache
        self._namespace = namespace
        self._path = JOBS.collection(namespace)
        self._version = 0
        self._pause = _FIRST_PAUSE

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        lost = True
        while True:
            if await self._listed():
                self.synced.set()
                # Not all namespaces at the same time.
                seconds = _LIST_AGAIN_SECONDS * random.uniform(0.9, 1.1)
            elif lost:
                continue
            else:
                # The list was only to be sure: what the watch tells is worth more than waiting for it.
                seconds = _LIST_SOON_SECONDS
            until = loop.time() + seconds
            lost = False
            while not lost and (left := until - loop.time()) > 0:
                lost = not await self._watched(min(left, _WATCH_SECONDS))

    async def _listed(self) -> bool:
        """False: it did not come to an end; a pause was made."""
        kept: set[str] = set()
        query: dict[str, str | int] = {"limit": _PAGE}
        try:
            while True:
                page = await self._api.list(self._path, query)
                for item in page["items"]:
                    kept.add(item["metadata"]["uid"])
                    self._cache.put(item)
                reached = version(page["metadata"])
                follows = page["metadata"].get("continue")
                if not follows:
                    break
                query["continue"] = follows
        except KubealignError as error:
            await self._back_off(error)
            return False
        self._cache.sweep(self._namespace, kept, reached)
        self._reach(reached)
        self._well()
        return True

    async def _watched(self, seconds: float) -> bool:
        """One watch. False: what happened since is forgotten, and only a list helps."""
        query = {"resourceVersion": self._version, "timeoutSeconds": max(1, round(seconds))}
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with aclosing(self._api.watch(self._path, query)) as events:
                async for event in events:
                    self._take(event)
                    self._well()
                    # A burst that lies in the buffer already must not keep requests from their turn.
                    await asyncio.sleep(0)
        except WatchExpired:
            log.info("the watch of %s is too old: listing again", self._path)
            return False
        except KubealignError as error:
            await self._back_off(error)
            return True
        self._well()
        if loop.time() - began < 1.0:
            # A server that ends every watch at once is not asked as fast as it answers.
            await self._sleep()
        return True

    def _take(self, event: Json) -> None:
        kind, item = event.get("type"), event.get("object") or {}
        if kind in ("ADDED", "MODIFIED"):
            self._cache.put(item)
        elif kind == "DELETED":
            self._cache.remove(item)
        self._reach(version(item.get("metadata") or {}))

    def _reach(self, reached: int) -> None:
        self._version = max(self._version, reached)
        self._cache.reach(self._namespace, self._version)

    def _well(self) -> None:
        self.trouble = ""
        self._pause = _FIRST_PAUSE

    async def _back_off(self, error: KubealignError) -> None:
        self.trouble = str(error)
        log.warning("%s: %s", self._path, error)
        await self._sleep()

    async def _sleep(self) -> None:
        await asyncio.sleep(self._pause * random.uniform(0.5, 1.0))
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
