"""Mirrors objects of the API server into a store: a paged list, then a watch that resumes after it.

The official client's SharedInformer was measured and rejected: it keeps complete objects (six thousand
pods take more memory than the operator may have), lists in one response, reconnects at once to a server
that is down, and has no deadline for a silent connection. Here the store reduces objects before it keeps
them, pages are small, bookmarks advance the resume point, and every failure has an exponential backoff.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol

from kubealign.backoff import Backoff
from kubealign.errors import KubealignError
from kubealign.kube.api import WATCH_IDLE_TIMEOUT_SECONDS, Json, KubernetesApi
from kubealign.kube.documents import MAX_PAGE_BYTES, UnreadableObject
from kubealign.kube.errors import ApiStatusError, ResponseTooLarge, is_watch_expired
from kubealign.kube.resources import ApiResource, resource_version

log = logging.getLogger(__name__)

# The server ends a watch itself, so that another of its replicas may take the next one.
_WATCH_SECONDS = 300
_RELIST_RETRY_SECONDS = 10.0
_MIN_BACKOFF_SECONDS, _MAX_BACKOFF_SECONDS = 0.1, 10.0


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


def _ignore_resource(resource: ApiResource) -> None:
    """Observe nothing."""


@dataclass(frozen=True)
class ReflectorOptions:
    """Options of a reflector.

    Attributes:
        resync_seconds: Time between two lists, which find what a silently broken watch has missed.
        page_size: Objects in one page of a list.
        silence_timeout: Seconds without a byte after which a watch counts as broken.
        on_list: Called after each complete list.
        on_unreadable: Called for each object that is not readable, or that the store cannot take.
    """

    resync_seconds: float
    page_size: int = 100
    silence_timeout: float = WATCH_IDLE_TIMEOUT_SECONDS
    on_list: Callable[[ApiResource], None] = _ignore_resource
    on_unreadable: Callable[[ApiResource], None] = _ignore_resource


class Reflector:
    """Mirrors one `scope`.

    `synced` is set once the first list is stored; `last_error` is empty while changes are received.
    """

    def __init__(
        self, api: KubernetesApi, scope: Scope, store: ObjectStore, options: ReflectorOptions
    ) -> None:
        self.synced = asyncio.Event()
        self.last_error = ""
        self._api = api
        self.scope = scope
        self._store = store
        self._options = options
        self._version = 0
        self._backoff = Backoff(_MIN_BACKOFF_SECONDS, _MAX_BACKOFF_SECONDS)

    async def run(self) -> None:
        """Mirror until cancelled."""
        loop = asyncio.get_running_loop()
        must_list = True
        while True:
            if await self._list():
                self.synced.set()
                # Jitter: not all kinds and namespaces at the same time.
                seconds = self._options.resync_seconds * random.uniform(0.9, 1.1)
            elif must_list:
                continue
            else:
                # The list was only a resync: continuing the watch matters more than repeating it.
                seconds = min(self._options.resync_seconds, _RELIST_RETRY_SECONDS)
            until = loop.time() + seconds
            must_list = False
            while not must_list and (remaining := until - loop.time()) > 0:
                must_list = not await self._watch(min(remaining, _WATCH_SECONDS))

    async def _list(self) -> bool:
        """List all objects. False: the list failed, and the backoff has passed."""
        uids: set[str] = set()
        query: dict[str, Any] = {**self.scope.query, "limit": self._options.page_size}
        try:
            while True:
                try:
                    page = await self._api.list(self.scope.path, query, max_bytes=MAX_PAGE_BYTES)
                except ResponseTooLarge:
                    if query["limit"] == 1:
                        raise
                    query["limit"] = query["limit"] // 2
                    continue
                for item in page["items"]:
                    uids.add(str(item["metadata"]["uid"]))
                    self._put(item)
                listed_version = resource_version(page["metadata"])
                continue_token = page["metadata"].get("continue")
                if not continue_token:
                    break
                query["continue"] = continue_token
        except KubealignError as error:
            await self._back_off("list", error)
            return False
        self._options.on_list(self.scope.resource)
        self._store.sweep(self.scope.namespace, uids, listed_version)
        self._advance_to(listed_version)
        self._record_success()
        return True

    async def _watch(self, seconds: float) -> bool:
        """Run one watch. False: the resume point has expired, and a new list is required."""
        query = {
            **self.scope.query,
            "resourceVersion": self._version,
            "timeoutSeconds": max(1, round(seconds)),
        }
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            async with aclosing(
                self._api.watch(self.scope.path, query, self._options.silence_timeout)
            ) as events:
                async for event in events:
                    self._apply(event)
                    self._record_success()
                    # A burst of buffered events must not starve the other tasks.
                    await asyncio.sleep(0)
        except KubealignError as error:
            if is_watch_expired(error):
                log.info("the watch of %s has expired: listing again", self.scope.path)
                return False
            await self._back_off("watch", error)
            return True
        self.last_error = ""
        if loop.time() - started < 1.0:
            # A server that ends every watch at once must not cause a busy loop.
            await asyncio.sleep(self._backoff.next_delay())
        return True

    def _apply(self, event: Json) -> None:
        kind, item = event.get("type"), event.get("object") or {}
        if kind in ("ADDED", "MODIFIED"):
            self._put(item)
        elif kind == "DELETED":
            self._deliver(item, self._store.remove)
        self._advance_to(resource_version(item.get("metadata") or {}))

    def _put(self, item: Json) -> None:
        if isinstance(item, UnreadableObject):
            log.warning("%s: %s", self._describe(item), item.reason)
            self._options.on_unreadable(self.scope.resource)
        self._deliver(item, self._store.put)

    def _deliver(self, item: Json, receive: Callable[[Json], None]) -> None:
        """Pass the object to the store. An object that causes a failure there does not end the reflector."""
        try:
            receive(item)
        except Exception:
            log.exception("%s cannot be stored", self._describe(item))
            self._options.on_unreadable(self.scope.resource)

    def _describe(self, item: Json) -> str:
        metadata = item.get("metadata") or {}
        return f"{self.scope.resource.kind} {metadata.get('namespace')}/{metadata.get('name')}"

    def _advance_to(self, new_version: int) -> None:
        self._version = max(self._version, new_version)
        self._store.advance_to(self.scope.namespace, self._version)

    def _record_success(self) -> None:
        self.last_error = ""
        self._backoff.reset()

    async def _back_off(self, verb: str, error: KubealignError) -> None:
        self.last_error = str(error)
        log.warning("%s of %s: %s", verb, self.scope.path, error)
        retry_after = error.retry_after if isinstance(error, ApiStatusError) else None
        await asyncio.sleep(max(retry_after or 0.0, self._backoff.next_delay()))
