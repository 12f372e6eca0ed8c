"""Snapshot locks: a snapshot in use is not overwritten, as long as a view of it exists."""

import errno
import fcntl
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kubealign.spec.sections.rollout import WeightEncoding, WeightTransport
from kubealign.v1 import refit_pb2
from kubealign_services.weights.announce.manifest import CorruptTransfer
from kubealign_services.weights.receive.receiver import WeightsReceiver
from kubealign_services.weights.send.publisher import WeightsPublisher
from kubealign_services.weights.transfer.shared_memory import MappedSnapshot, SnapshotGone

pytestmark = pytest.mark.timeout(60)

NAMES = ("embed.weight", "head.weight")


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[WeightsPublisher]:
    weights_publisher = WeightsPublisher(tmp_path, "trainer:1", WeightTransport.AUTO)
    yield weights_publisher
    weights_publisher.close()


def publish(publisher: WeightsPublisher, version: int) -> refit_pb2.WeightsAnnouncement:
    """Publish version v, whose numbers are all v."""
    tensors = ((name, torch.full((30, 40), float(version))) for name in NAMES)
    return publisher.publish(fence=1, version=version, tensors=tensors, canary=refit_pb2.Canary())


def receiver(
    folder: Path, publisher: WeightsPublisher, encoding: WeightEncoding = WeightEncoding.DENSE
) -> WeightsReceiver:
    async def stream(
        address: str, request: refit_pb2.FetchWeightsRequest, timeout: float
    ) -> AsyncGenerator[refit_pb2.WeightsChunk]:
        for chunk in publisher.chunks(request):
            yield chunk

    return WeightsReceiver(folder, stream, 10.0, encoding=encoding)


async def fetch_views(
    receiver: WeightsReceiver, announcement: refit_pb2.WeightsAnnouncement
) -> dict[str, Tensor]:
    """Return views that outlive the transfer."""
    async with receiver.fetch(announcement) as transfer:
        assert transfer.tensors.lasts
        return dict(transfer.tensors)


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def removed_but_mapped(folder: Path) -> list[str]:
    """Removed files whose memory this process still maps."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if f"{folder}/" in line and line.endswith("(deleted)")]


def all_are(tensors: dict[str, Tensor], version: int) -> bool:
    return all(bool((tensor == version).all()) for tensor in tensors.values())


async def test_version_in_use_stays_intact_through_later_versions(
    publisher: WeightsPublisher, tmp_path: Path
) -> None:
    slow = await fetch_views(receiver(tmp_path, publisher), publish(publisher, 1))
    quick = receiver(tmp_path, publisher)
    for version in range(2, 7):
        views = await fetch_views(quick, publish(publisher, version))
        assert all_are(views, version) and all_are(slow, 1)
        assert len(files(tmp_path)) == 2


async def test_prompt_reader_needs_only_two_files(publisher: WeightsPublisher, tmp_path: Path) -> None:
    first, worker = files(tmp_path), receiver(tmp_path, publisher)
    views: dict[str, Tensor] = {}
    for version in range(1, 8):
        views = await fetch_views(worker, publish(publisher, version))
        assert all_are(views, version)
    assert files(tmp_path) == first


async def test_single_view_keeps_the_lock(publisher: WeightsPublisher, tmp_path: Path) -> None:
    before = files(tmp_path)
    worker = receiver(tmp_path, publisher)
    views = await fetch_views(worker, publish(publisher, 1))
    corner = views["head.weight"][3:, 5]
    del views
    publish(publisher, 2)
    publish(publisher, 3)
    assert len(files(tmp_path) - before) == 1
    assert bool((corner == 1).all())
    after = files(tmp_path)
    assert removed_but_mapped(tmp_path)
    del corner
    for version in range(4, 7):
        await fetch_views(worker, publish(publisher, version))
    assert files(tmp_path) == after
    assert not removed_but_mapped(tmp_path)


async def test_eight_receivers_share_one_snapshot(publisher: WeightsPublisher, tmp_path: Path) -> None:
    before = files(tmp_path)
    receivers = [receiver(tmp_path, publisher) for _ in range(8)]
    views: list[dict[str, Tensor]] = []
    for version in range(1, 6):
        announcement = publish(publisher, version)
        views = [await fetch_views(each, announcement) for each in receivers]
        assert all(all_are(tensors, version) for tensors in views)
    assert files(tmp_path) == before
    # One reader falls behind and keeps its snapshot's memory; seven continue.
    late = views.pop()
    for version in range(6, 9):
        announcement = publish(publisher, version)
        views = [await fetch_views(each, announcement) for each in receivers[:7]]
    assert all_are(late, 5) and all(all_are(tensors, 8) for tensors in views)
    assert len(files(tmp_path) - before) == 1


@pytest.mark.parametrize("is_killed", [True, False])
def test_killed_reader_releases_the_lock(
    publisher: WeightsPublisher, tmp_path: Path, is_killed: bool
) -> None:
    publish(publisher, 1)
    name = publish(publisher, 2).parts[0].sources[0].shared_memory.name
    program = (
        "import fcntl, sys; file = open(sys.argv[1]); fcntl.flock(file, fcntl.LOCK_SH); "
        "print('locked', flush=True); sys.stdin.read()"
    )
    reader = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / name)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert reader.stdout is not None and reader.stdout.readline() == b"locked\n"
        if is_killed:
            reader.kill()
            reader.wait(timeout=20)
        publish(publisher, 3)
        written = publish(publisher, 4).parts[0].sources[0].shared_memory.name
        assert (written == name) is is_killed
    finally:
        reader.kill()
        reader.communicate(timeout=20)


async def test_without_locks_every_version_has_its_own_file(
    publisher: WeightsPublisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    names, worker = set(), receiver(tmp_path, publisher)
    for version in range(1, 5):
        announcement = publish(publisher, version)
        names.add(announcement.parts[0].sources[0].shared_memory.name)
        async with worker.fetch(announcement) as transfer:
            assert not transfer.tensors.lasts
            assert all_are(dict(transfer.tensors), version)
            transfer.check_valid()
    assert len(names) == 4
    assert len(files(tmp_path)) == 2


async def test_snapshot_being_written_cannot_be_read(publisher: WeightsPublisher, tmp_path: Path) -> None:
    first = publish(publisher, 1)
    publish(publisher, 2)
    worker = receiver(tmp_path, publisher)
    seen: list[type[BaseException]] = []

    def tensors() -> Iterator[tuple[str, Tensor]]:
        yield NAMES[0], torch.ones(30, 40)
        part = first.parts[0]
        try:
            MappedSnapshot(tmp_path, part.sources[0].shared_memory.name, first.weights, part.size_bytes)
        except SnapshotGone as error:
            seen.append(type(error))

    publisher.publish(fence=1, version=3, tensors=tensors(), canary=refit_pb2.Canary())
    assert seen == [SnapshotGone]
    assert all_are(await fetch_views(worker, publish(publisher, 4)), 4)


async def test_damaged_map_is_mapped_again(tmp_path: Path) -> None:
    publisher = WeightsPublisher(tmp_path, None, WeightTransport.SHARED_MEMORY)
    worker = receiver(tmp_path, publisher)
    views = await fetch_views(worker, publish(publisher, 1))
    views["embed.weight"][0, 0] = 7.0  # this process's own page from now on
    del views
    publish(publisher, 2)
    other = receiver(tmp_path, publisher)
    third = publish(publisher, 3)
    assert all_are(await fetch_views(worker, third), 3)
    assert all_are(await fetch_views(other, third), 3)
    publisher.close()


async def test_corruption_is_detected_before_views_are_kept(
    publisher: WeightsPublisher, tmp_path: Path
) -> None:
    announcement = publish(publisher, 1)
    for part in announcement.parts:
        part.sources.pop()  # the stream
        path = tmp_path / part.sources[0].shared_memory.name
        with path.open("r+b") as file:
            file.seek(64 + 40)
            file.write(b"\x01")
    with pytest.raises(CorruptTransfer, match=r"1 of 2 tensors from shared memory .* embed.weight"):
        await fetch_views(receiver(tmp_path, publisher), announcement)


async def test_cached_delta_base_cannot_be_kept(tmp_path: Path) -> None:
    """Deltas of the next version are applied to the base in place."""
    publisher = WeightsPublisher(
        tmp_path / "shared", "trainer:1", WeightTransport.AUTO, encoding=WeightEncoding.DELTA
    )
    for encoding, lasts in ((WeightEncoding.DELTA, False), (WeightEncoding.DENSE, True)):
        elsewhere = receiver(tmp_path / "nowhere", publisher, encoding)
        async with elsewhere.fetch(publish(publisher, 1)) as transfer:
            assert transfer.transport == "stream"
            assert transfer.tensors.lasts is lasts
    async with receiver(tmp_path / "shared", publisher, WeightEncoding.DELTA).fetch(
        publish(publisher, 1)
    ) as transfer:
        assert transfer.tensors.lasts
    publisher.close()
