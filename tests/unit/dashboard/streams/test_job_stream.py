"""The stream of a job: each entry once, however often the reader is cut off and however slow it is."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubealign.client.errors import MetricsUnreadable, Unavailable
from kubealign.client.records import JobRecord, JobRef, ProcessRecord, ProcessState
from kubealign.read_model import STREAM_START, SampleRecord, StepMetrics
from kubealign_dashboard.streams.cursor import StreamCursor
from kubealign_dashboard.streams.hub import Hub
from kubealign_dashboard.streams.job_feed import PollIntervals
from kubealign_dashboard.streams.job_stream import job_stream
from support.dashboard import LETTERS, Seen, events, eventually, site_with_jobs
from support.memory_backend import MemoryBackend

QUICK = PollIntervals(metrics=0.002, processes=0.002, finished=0.002)
SECONDS = 30
pytestmark = pytest.mark.timeout(60)


class Counted(MemoryBackend):
    """A backend that counts its calls."""

    watches = 0
    looks = 0

    async def watch(self, ref: JobRef) -> AsyncIterator[JobRecord]:
        self.watches += 1
        async for record in super().watch(ref):
            yield record

    async def metrics(
        self, ref: JobRef, after: str = STREAM_START, count: int = 1000
    ) -> Sequence[StepMetrics]:
        self.looks += 1
        return await super().metrics(ref, after, count)


@pytest.fixture
async def site(tmp_path: Path) -> MemoryBackend:
    return await site_with_jobs(tmp_path)


def report(site: MemoryBackend, step: int) -> None:
    site.report(LETTERS, step, {"reward/mean": 0.1})
    site.sample(LETTERS, SampleRecord("", step, "ab", f"response {step}"))


@dataclass
class Reader:
    """A reader that resumes with the last id that it received."""

    site: MemoryBackend
    hub: Hub
    last: str = ""
    steps: list[int] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def see(self, seen: Seen) -> None:
        self.names.append(seen.event)
        self.last = seen.id
        if seen.event == "metrics":
            self.steps += [item["step"] for item in seen.data["items"]]
        if seen.event == "samples":
            self.samples += [item["step"] for item in seen.data["items"]]
            assert all("tokens" not in item for item in seen.data["items"])

    async def look(self, *, until: int | None = None, most: int | None = None) -> None:
        """Read until this step has arrived, or this many events."""
        record = await self.site.get(LETTERS)
        cursor = StreamCursor.parse(self.last) if self.last else StreamCursor()
        frames = job_stream(self.hub, self.site, record, cursor, processes=True)
        count = 0
        # A closed browser ends the generator at any point.
        async with aclosing(frames), asyncio.timeout(SECONDS):  # type: ignore[type-var]
            async for seen in events(cast(AsyncIterator[bytes], frames)):
                self.see(seen)
                count += 1
                if count == most or (until is not None and until in self.steps and until in self.samples):
                    return


@settings(max_examples=40)
@given(
    before=st.integers(0, 4),
    rounds=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), max_size=6),
)
def test_each_entry_arrives_once_under_any_sequence_of_disconnections(
    tmp_path_factory: pytest.TempPathFactory, before: int, rounds: list[tuple[int, int]]
) -> None:
    async def run() -> None:
        site = await site_with_jobs(tmp_path_factory.getbasetemp())
        hub = Hub(site, QUICK)
        reader, other = Reader(site, hub), Reader(site, hub)
        steps = 0
        for _ in range(before):
            report(site, steps := steps + 1)
        last = before + sum(more for more, _ in rounds) + 1
        always = asyncio.ensure_future(other.look(until=last))
        for more, frames in rounds:
            looking = asyncio.ensure_future(reader.look(most=frames))
            for _ in range(more):
                await asyncio.sleep(0.001)
                report(site, steps := steps + 1)
            await asyncio.wait({looking}, timeout=0.01)
            looking.cancel()
            await asyncio.wait({looking})
        report(site, steps := steps + 1)
        await reader.look(until=steps)
        await always
        assert reader.steps == reader.samples == list(range(1, steps + 1))
        assert other.steps == other.samples == list(range(1, steps + 1))
        assert hub.followed_jobs == 0

    asyncio.run(run())


async def test_the_job_comes_first_and_gone_last(site: MemoryBackend) -> None:
    hub = Hub(site, QUICK)
    reader = Reader(site, hub)
    looking = asyncio.ensure_future(reader.look())
    report(site, 1)
    await eventually(lambda: "samples" in reader.names)
    site.staff(LETTERS, ProcessRecord("driver", "driver", ProcessState.READY))
    await eventually(lambda: reader.names[-1] == "roles")
    await site.delete(LETTERS)
    await asyncio.wait_for(looking, SECONDS)
    assert reader.names[0] == "job"
    assert reader.names[-1] == "gone"
    assert hub.followed_jobs == 0


async def test_many_readers_share_one_poll(tmp_path: Path) -> None:
    site = Counted()
    site._jobs = (await site_with_jobs(tmp_path))._jobs
    hub = Hub(site, PollIntervals(metrics=0.05, processes=1.0))
    readers = [Reader(site, hub) for _ in range(100)]
    for step in range(1, 4):
        report(site, step)
    looking = [asyncio.ensure_future(reader.look(until=6)) for reader in readers]
    await eventually(lambda: all(reader.steps for reader in readers))
    looks = site.looks
    for step in range(4, 7):
        report(site, step)
    await asyncio.wait_for(asyncio.gather(*looking), SECONDS)
    assert site.watches == 1
    assert site.looks - looks < 20, "a hundred readers look through one pair of eyes"
    assert all(reader.steps == [1, 2, 3, 4, 5, 6] for reader in readers)


@pytest.mark.slow
async def test_a_slow_reader_is_disconnected_and_resumes(site: MemoryBackend) -> None:
    hub = Hub(site, QUICK)
    reader, quick = Reader(site, hub), Reader(site, hub)
    await reader.look(most=1)
    frames = job_stream(hub, site, await site.get(LETTERS), StreamCursor.parse(reader.last), processes=True)
    assert b"retry" in await anext(frames)
    assert b"event: job" in await anext(frames)
    slow = events(cast(AsyncIterator[bytes], frames))
    coming = asyncio.ensure_future(anext(slow))
    await eventually(lambda: hub.followed_jobs)
    report(site, 1)
    reader.see(await asyncio.wait_for(coming, SECONDS))
    looking = asyncio.ensure_future(quick.look(until=400))
    for step in range(2, 401):
        report(site, step)
        await eventually(lambda expected_step=step: expected_step in quick.steps[-2:])  # type: ignore[misc]
    await asyncio.wait_for(looking, SECONDS)
    async for seen in slow:
        reader.see(seen)
    assert max(reader.steps, default=0) < 400, "it was cut off"
    await reader.look(until=400)
    assert reader.steps == reader.samples == list(range(1, 401))


async def test_a_temporary_failure_of_the_backend_loses_nothing(
    site: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kubealign_dashboard.streams.feed._INITIAL_BACKOFF_SECONDS", 0.01)
    hub = Hub(site, QUICK)
    reader = Reader(site, hub)
    looking = asyncio.ensure_future(reader.look(until=2))
    report(site, 1)
    await eventually(lambda: 1 in reader.samples)
    site.failing = Unavailable("Redis did not answer")
    await asyncio.sleep(0.05)
    site.failing = None
    report(site, 2)
    await asyncio.wait_for(looking, SECONDS)
    assert reader.steps == [1, 2]


async def test_entries_that_cannot_be_read_do_not_stop_the_rest(
    site: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that catching up and following go on without metrics, and tell why they are missing."""
    error = MetricsUnreadable("the key kubealign:default:letters:metrics cannot be read")
    readable = site.metrics

    async def unreadable(*arguments: object) -> Sequence[StepMetrics]:
        raise error

    report(site, 1)
    monkeypatch.setattr(site, "metrics", unreadable)
    hub = Hub(site, QUICK)
    reader = Reader(site, hub)
    frames = job_stream(hub, site, await site.get(LETTERS), StreamCursor(), processes=False)
    reasons = []
    async with asyncio.timeout(SECONDS):
        async for seen in events(cast(AsyncIterator[bytes], frames)):
            reader.see(seen)
            if seen.event == "unreadable":
                assert seen.data["kind"] == "metrics"
                reasons.append(seen.data["reason"])
                if reader.samples == [1]:
                    # The stream follows the job now.
                    report(site, 2)
            if reader.samples == [1, 2]:
                monkeypatch.setattr(site, "metrics", readable)
    # The stream has ended: the reader resumes, and gets what it lacks.
    assert reasons == [str(error), str(error), ""]
    assert reader.steps == []
    await asyncio.wait_for(reader.look(until=2), SECONDS)
    assert (reader.steps, reader.samples) == ([1, 2], [1, 2])
    hub.close()


async def test_processes_are_sent_to_authorized_readers_only(site: MemoryBackend) -> None:
    site.staff(LETTERS, ProcessRecord("driver", "driver", ProcessState.READY))
    hub = Hub(site, QUICK)
    frames = job_stream(hub, site, await site.get(LETTERS), StreamCursor(), processes=False)
    names = []
    report(site, 1)
    async with asyncio.timeout(SECONDS):
        async for seen in events(cast(AsyncIterator[bytes], frames)):
            names.append(seen.event)
            if "samples" in names:
                break
        hub.close()
        names += [seen.event async for seen in events(cast(AsyncIterator[bytes], frames))]
    assert "roles" not in names


async def test_shutdown_ends_every_stream(site: MemoryBackend) -> None:
    hub = Hub(site, QUICK)
    looking = [asyncio.ensure_future(Reader(site, hub).look()) for _ in range(5)]
    await eventually(lambda: hub.followed_jobs)
    hub.close()
    await asyncio.wait_for(asyncio.gather(*looking), SECONDS)
    assert hub.followed_jobs == 0
