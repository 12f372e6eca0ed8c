"""The stream of the job list: authorization, resumption and reset."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from pathlib import Path
from typing import cast

import pytest

from kubealign.client.records import JobRecord, JobRef
from kubealign_dashboard.streams import hub as hubs
from kubealign_dashboard.streams.hub import Hub
from kubealign_dashboard.streams.list_stream import list_stream
from support.dashboard import ELSEWHERE, LETTERS, SUMS, Seen, events, eventually, site_with_jobs
from support.memory_backend import MemoryBackend

SECONDS = 30
pytestmark = pytest.mark.timeout(60)


class Telling(MemoryBackend):
    """A backend that is a ChangeSource."""

    def __init__(self) -> None:
        super().__init__()
        self.told: asyncio.Queue[Sequence[JobRecord | JobRef]] = asyncio.Queue()

    async def changes(self) -> AsyncIterator[Sequence[JobRecord | JobRef]]:
        while True:
            yield await self.told.get()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "_LIST_POLL_SECONDS", 0.005)


@pytest.fixture
async def site(tmp_path: Path) -> MemoryBackend:
    return await site_with_jobs(tmp_path)


async def follow(
    hub: Hub, count: int, namespaces: Collection[str] | None = None, last: str = ""
) -> list[Seen]:
    """Return this many events."""
    received: list[Seen] = []
    frames = list_stream(hub, namespaces, last)
    async with asyncio.timeout(SECONDS):
        async for seen in events(cast(AsyncIterator[bytes], frames)):
            received.append(seen)
            if len(received) == count:
                break
    await frames.aclose()  # type: ignore[attr-defined]
    return received


def names(seen: Seen) -> list[str]:
    return [item.get("name") or item["metadata"]["name"] for item in seen.data["items"]]


async def test_changed_new_and_deleted_jobs(site: MemoryBackend, tmp_path: Path) -> None:
    hub = Hub(site)
    looking = asyncio.ensure_future(follow(hub, 3))
    await eventually(lambda: hub._list is not None and hub._list.ready.is_set())
    site.status(SUMS, phase="Running", step=1)
    await eventually(lambda: hub._list is not None and hub._list.journal.position == 1)
    await site.delete(LETTERS)
    ready, changed, gone = await looking
    assert ready.event == "ready"
    assert (changed.event, names(changed)) == ("jobs", ["sums"])
    assert changed.data["items"][0]["status"]["step"] == 1
    assert (gone.event, gone.data["items"]) == ("gone", [{"namespace": "default", "name": "letters"}])
    hub.close()


async def test_a_disconnected_reader_resumes(site: MemoryBackend) -> None:
    hub = Hub(site)
    (ready,) = await follow(hub, 1)
    site.status(SUMS, step=1)
    site.status(LETTERS, step=1)
    first = (await follow(hub, 2, last=ready.id))[1]
    second = (await follow(hub, 2, last=first.id))[1]
    assert sorted(names(first) + names(second)) == ["letters", "sums"]
    hub.close()


async def test_lost_changes_cause_a_reset(site: MemoryBackend) -> None:
    hub = Hub(site)
    (seen,) = await follow(hub, 1, last="0123abcd:7")
    assert seen.event == "reset"
    hub.close()


async def test_other_namespaces_are_not_sent(site: MemoryBackend) -> None:
    hub = Hub(site)
    looking = asyncio.ensure_future(follow(hub, 2, {"default"}))
    await eventually(lambda: hub._list is not None and hub._list.ready.is_set())
    site.status(ELSEWHERE, step=1)
    await eventually(lambda: hub._list is not None and hub._list.journal.position == 1)
    site.status(SUMS, step=1)
    assert names((await looking)[1]) == ["sums"]
    hub.close()


async def test_a_change_source_is_not_polled(tmp_path: Path) -> None:
    site = Telling()
    site._jobs = (await site_with_jobs(tmp_path))._jobs
    hub = Hub(site)
    looking = asyncio.ensure_future(follow(hub, 3))
    await eventually(lambda: hub._list is not None and hub._list.ready.is_set())
    await asyncio.sleep(0.01)
    await site.told.put([await site.get(SUMS), LETTERS])
    _, changed, gone = await looking
    assert (names(changed), names(gone)) == (["sums"], ["letters"])
    hub.close()
