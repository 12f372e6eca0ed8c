"""List and watch of a set of objects that resumes after disconnections."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass

from kubealign.backoff import Backoff
from kubealign.errors import Unavailable
from kubealign.kube.api import CALL_TIMEOUT_SECONDS, Json, KubernetesApi
from kubealign.kube.errors import WatchExpired

_PAGE_SIZE = 500
# The server ends a watch itself, so that another of its replicas may take over.
_WATCH_SECONDS = 300
_MIN_BACKOFF_SECONDS, _MAX_BACKOFF_SECONDS = 0.1, 10.0
# An attempt that lasts longer was connected.
_CONNECTED_SECONDS = 2 * CALL_TIMEOUT_SECONDS
#: Seconds without a response after which the watcher receives Unavailable.
UNAVAILABLE_TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True)
class ObjectChange:
    """Changed object: its present state, or its last state if it was deleted."""

    item: Json
    is_deleted: bool = False


async def list_all(api: KubernetesApi, path: str, query: Mapping[str, str | int]) -> tuple[list[Json], str]:
    """Return the objects of all pages and the resourceVersion to watch from."""
    items: list[Json] = []
    page_query: dict[str, str | int] = {**query, "limit": _PAGE_SIZE}
    while True:
        page = await api.list(path, page_query)
        items += page.get("items") or ()
        metadata = page.get("metadata") or {}
        if not metadata.get("continue"):
            return items, str(metadata.get("resourceVersion") or "")
        page_query["continue"] = metadata["continue"]


async def watch_changes(
    api: KubernetesApi,
    path: str,
    query: Mapping[str, str | int],
    *,
    known_objects: Mapping[str, Json] | None = None,
    unavailable_timeout: float = UNAVAILABLE_TIMEOUT_SECONDS,
) -> AsyncGenerator[ObjectChange]:
    """Yield the objects at `path` that `query` selects, then each change.

    The generator does not end by itself; the caller must close it.

    Args:
        known_objects: Objects (by uid) that are omitted while they are unchanged.
        unavailable_timeout: Seconds without any response after which Unavailable is raised. Forbidden and
            Unauthenticated are raised at once.
    """
    seen = dict(known_objects or {})
    loop = asyncio.get_running_loop()
    outage = _Outage()
    version = ""
    while True:
        started = loop.time()
        try:
            if not version:
                items, version = await list_all(api, path, query)
                outage.end()
                for change in _diff(seen, items):
                    yield change
            watch_query = {**query, "resourceVersion": version, "timeoutSeconds": _WATCH_SECONDS}
            async with aclosing(api.watch(path, watch_query)) as events:
                async for event in events:
                    outage.end()
                    item = event.get("object") or {}
                    version = str((item.get("metadata") or {}).get("resourceVersion") or version)
                    latest = _apply_event(seen, str(event.get("type")), item)
                    if latest is not None:
                        yield latest
            outage.end()
        except WatchExpired:
            outage.end()
            version = ""
        except Unavailable:
            if outage.record_failure(started) > unavailable_timeout:
                raise
            await asyncio.sleep(outage.backoff.next_delay())
            continue
        if loop.time() - started < 1.0:
            # Limits the request rate towards a server that ends every watch at once.
            await asyncio.sleep(1.0)


class _Outage:
    """Time without a response of the API server."""

    def __init__(self) -> None:
        self.backoff = Backoff(_MIN_BACKOFF_SECONDS, _MAX_BACKOFF_SECONDS)
        self._started: float | None = None

    def end(self) -> None:
        """Record a response."""
        self._started = None
        self.backoff.reset()

    def record_failure(self, attempt_started: float) -> float:
        """Record a failed attempt and return seconds since the last response.

        Args:
            attempt_started: Time of the event loop at which the attempt began.
        """
        now = asyncio.get_running_loop().time()
        if now - attempt_started > _CONNECTED_SECONDS:
            # The attempt lasted longer than connecting can: the server had responded.
            self.end()
            attempt_started = now
        if self._started is None:
            self._started = attempt_started
        return now - self._started


def _diff(seen: dict[str, Json], items: list[Json]) -> list[ObjectChange]:
    """Return the changes from `seen` to `items`, and update `seen` to `items`."""
    current = {str(item["metadata"]["uid"]): item for item in items}
    deleted = [ObjectChange(item, is_deleted=True) for uid, item in seen.items() if uid not in current]
    changed = [
        ObjectChange(item)
        for uid, item in current.items()
        if _resource_version(seen.get(uid)) != _resource_version(item)
    ]
    seen.clear()
    seen.update(current)
    return deleted + changed


def _apply_event(seen: dict[str, Json], kind: str, item: Json) -> ObjectChange | None:
    uid = str((item.get("metadata") or {}).get("uid") or "")
    if kind == "DELETED":
        seen.pop(uid, None)
        return ObjectChange(item, is_deleted=True)
    if kind in ("ADDED", "MODIFIED") and _resource_version(seen.get(uid)) != _resource_version(item):
        seen[uid] = item
        return ObjectChange(item)
    return None


def _resource_version(item: Json | None) -> str:
    return "" if item is None else str(item["metadata"].get("resourceVersion") or "")
