"""What happens to some objects: a list, then a watch that goes on where it was, through whatever breaks."""

import asyncio
import random
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass

from kubealign.client.errors import Unavailable
from kubealign.client.kubernetes_api import Json, KubernetesApi
from kubealign.client.kubernetes_failures import WatchExpired

_PAGE = 500
# The server ends a watch itself: another of its replicas may then take it.
_WATCH_SECONDS = 300
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0
#: How long nobody may answer before whoever watches is told.
PATIENCE_SECONDS = 300.0


@dataclass(frozen=True)
class Change:
    """An object as it is now, or, where it is gone, as it last was."""

    item: Json
    gone: bool = False


async def list_all(api: KubernetesApi, path: str, query: Mapping[str, str | int]) -> tuple[list[Json], str]:
    """Every page: the objects, and the resourceVersion to watch from."""
    items: list[Json] = []
    following: dict[str, str | int] = {**query, "limit": _PAGE}
    while True:
        page = await api.list(path, following)
        items += page.get("items") or ()
        metadata = page.get("metadata") or {}
        if not metadata.get("continue"):
            return items, str(metadata.get("resourceVersion") or "")
        following["continue"] = metadata["continue"]


async def changes(
    api: KubernetesApi,
    path: str,
    query: Mapping[str, str | int],
    *,
    known: Mapping[str, Json] | None = None,
    patience: float = PATIENCE_SECONDS,
) -> AsyncGenerator[Change]:
    """The objects at `path` that `query` selects, those in `known` (by uid) left out while they are as they
    were; then each change. It does not end by itself: to be closed by whoever leaves.

    Raises Unavailable once nobody has answered for `patience` seconds; Forbidden and Unauthenticated at
    once."""
    seen = dict(known or {})
    loop = asyncio.get_running_loop()
    pause, heard, version = _FIRST_PAUSE, loop.time(), ""
    while True:
        began = loop.time()
        try:
            if not version:
                items, version = await list_all(api, path, query)
                for change in _compared(seen, items):
                    yield change
            following = {**query, "resourceVersion": version, "timeoutSeconds": _WATCH_SECONDS}
            pause, heard = _FIRST_PAUSE, loop.time()
            async with aclosing(api.watch(path, following)) as events:
                async for event in events:
                    heard = loop.time()
                    item = event.get("object") or {}
                    version = str((item.get("metadata") or {}).get("resourceVersion") or version)
                    found = _taken(seen, str(event.get("type")), item)
                    if found is not None:
                        yield found
        except WatchExpired:
            version = ""
        except Unavailable:
            if loop.time() - heard > patience:
                raise
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, _LONGEST_PAUSE)
            continue
        if loop.time() - began < 1.0:
            # A server that ends every watch at once is not asked as fast as it answers.
            await asyncio.sleep(1.0)


def _compared(seen: dict[str, Json], items: list[Json]) -> list[Change]:
    """What has changed since `seen`, which becomes what there is."""
    now = {str(item["metadata"]["uid"]): item for item in items}
    gone = [Change(item, gone=True) for uid, item in seen.items() if uid not in now]
    changed = [Change(item) for uid, item in now.items() if _version(seen.get(uid)) != _version(item)]
    seen.clear()
    seen.update(now)
    return gone + changed


def _taken(seen: dict[str, Json], kind: str, item: Json) -> Change | None:
    uid = str((item.get("metadata") or {}).get("uid") or "")
    if kind == "DELETED":
        seen.pop(uid, None)
        return Change(item, gone=True)
    if kind in ("ADDED", "MODIFIED") and _version(seen.get(uid)) != _version(item):
        seen[uid] = item
        return Change(item)
    return None


def _version(item: Json | None) -> str:
    return "" if item is None else str(item["metadata"].get("resourceVersion") or "")
