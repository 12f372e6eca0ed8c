"""Mirrors jobs of the API server into the cache: a paged list, then a watch that resumes after it."""

import asyncio
import logging
import random
from contextlib import aclosing

from kubealign.errors import KubealignError
from kubealign.kube.api import KubernetesApi, WatchExpired
from kubealign.kube.resources import JOBS, resource_version
from kubealign_dashboard.cluster.cached_job import Json
from kubealign_dashboard.cluster.job_cache import JobCache

log = logging.getLogger(__name__)

_PAGE_SIZE = 200
# The server ends a watch itself, so that another of its replicas may take the next one.
_WATCH_SECONDS = 300
# A list finds what a silently broken watch has missed.
_RELIST_SECONDS = 1800.0
_RELIST_RETRY_SECONDS = 10.0
_MIN_BACKOFF, _MAX_BACKOFF = 0.1, 10.0


class JobReflector:
    """Mirrors the jobs of one namespace (None: all).

    `synced` is set once the first list is cached; `last_error` is empty while changes are received.
    """

    def __init__(self, api: KubernetesApi, cache: JobCache, namespace: str | None) -> None:
        self.synced = asyncio.Event()
        self.last_error = ""
        self._api = api
        self._cache = cache
        self._namespace = namespace
        self._path = JOBS.collection_path(namespace)
        self._version = 0
        self._backoff = _MIN_BACKOFF

    async def run(self) -> None:
        """Mirror until cancelled."""
        loop = asyncio.get_running_loop()
        must_list = True
        while True:
            if await self._list():
                self.synced.set()
                # Jitter: not all namespaces at the same time.
                seconds = _RELIST_SECONDS * random.uniform(0.9, 1.1)
            elif must_list:
                continue
            else:
                # The list was only a resync: continuing the watch matters more than repeating it.
                seconds = _RELIST_RETRY_SECONDS
            until = loop.time() + seconds
            must_list = False
            while not must_list and (remaining := until - loop.time()) > 0:
                must_list = not await self._watch(min(remaining, _WATCH_SECONDS))

    async def _list(self) -> bool:
        """List all jobs. False: the list failed, and the backoff has passed."""
        uids: set[str] = set()
        query: dict[str, str | int] = {"limit": _PAGE_SIZE}
        try:
            while True:
                page = await self._api.list(self._path, query)
                for item in page["items"]:
                    uids.add(item["metadata"]["uid"])
                    self._cache.put(item)
                listed_version = resource_version(page["metadata"])
                continue_token = page["metadata"].get("continue")
                if not continue_token:
                    break
                query["continue"] = continue_token
        except KubealignError as error:
            await self._back_off(error)
            return False
        self._cache.sweep(self._namespace, uids, listed_version)
        self._advance_to(listed_version)
        self._reset_errors()
        return True

    async def _watch(self, seconds: float) -> bool:
        """Run one watch. False: the resume point has expired, and a new list is required."""
        query = {"resourceVersion": self._version, "timeoutSeconds": max(1, round(seconds))}
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            async with aclosing(self._api.watch(self._path, query)) as events:
                async for event in events:
                    self._apply(event)
                    self._reset_errors()
                    # A burst of buffered events must not starve the requests.
                    await asyncio.sleep(0)
        except WatchExpired:
            log.info("the watch of %s has expired: listing again", self._path)
            return False
        except KubealignError as error:
            await self._back_off(error)
            return True
        self._reset_errors()
        if loop.time() - started < 1.0:
            # A server that ends every watch at once must not cause a busy loop.
            await self._sleep()
        return True

    def _apply(self, event: Json) -> None:
        kind, item = event.get("type"), event.get("object") or {}
        if kind in ("ADDED", "MODIFIED"):
            self._cache.put(item)
        elif kind == "DELETED":
            self._cache.remove(item)
        self._advance_to(resource_version(item.get("metadata") or {}))

    def _advance_to(self, new_version: int) -> None:
        self._version = max(self._version, new_version)
        self._cache.advance_to(self._namespace, self._version)

    def _reset_errors(self) -> None:
        self.last_error = ""
        self._backoff = _MIN_BACKOFF

    async def _back_off(self, error: KubealignError) -> None:
        self.last_error = str(error)
        log.warning("%s: %s", self._path, error)
        await self._sleep()

    async def _sleep(self) -> None:
        await asyncio.sleep(self._backoff * random.uniform(0.5, 1.0))
        self._backoff = min(2 * self._backoff, _MAX_BACKOFF)
