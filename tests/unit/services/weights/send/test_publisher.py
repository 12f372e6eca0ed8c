"""Snapshots: unchanged until the next publication but one, served completely or not at all."""

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kubealign.spec.sections.rollout import WeightTransport
from kubealign.v1 import batch_pb2, refit_pb2
from kubealign_services.runtime.rpc.errors import NotFound
from kubealign_services.training.weight_slices import WeightSlice
from kubealign_services.weights.announce.announcement import build_announcement
from kubealign_services.weights.announce.manifest import check_announcement, piece_view
from kubealign_services.weights.send.publisher import CHUNK_BYTES, PublishFailed, WeightsPublisher
from kubealign_services.weights.transfer import shared_memory
from kubealign_services.weights.transfer.shared_memory import MappedSnapshot, SnapshotGone, host_identity
from kubealign_services.weights.verify.checksum import verify_checksums

pytestmark = pytest.mark.timeout(60)

CANARY = refit_pb2.Canary(tokens=[1, 2], logprobs=[-1.0], tolerance=1e-3)


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[WeightsPublisher]:
    weights_publisher = WeightsPublisher(tmp_path, "localhost:1", WeightTransport.AUTO)
    yield weights_publisher
    weights_publisher.close()


def publish(
    publisher: WeightsPublisher, version: int, tensors: list[tuple[str, Tensor]]
) -> refit_pb2.WeightsAnnouncement:
    return publisher.publish(fence=1, version=version, tensors=iter(tensors), canary=CANARY)


def streamed(publisher: WeightsPublisher, announcement: refit_pb2.WeightsAnnouncement) -> bytearray:
    snapshot = bytearray(announcement.size_bytes)
    for chunk in publisher.chunks(refit_pb2.FetchWeightsRequest(weights=announcement.weights)):
        snapshot[chunk.offset_bytes : chunk.offset_bytes + len(chunk.data)] = chunk.data
    return snapshot


def mapped_at(folder: Path, announcement: refit_pb2.WeightsAnnouncement) -> MappedSnapshot:
    (part,) = announcement.parts
    return MappedSnapshot(folder, part.sources[0].shared_memory.name, announcement.weights, part.size_bytes)


def views(snapshot: memoryview, announcement: refit_pb2.WeightsAnnouncement) -> list[tuple[str, Tensor]]:
    return [(entry.name, piece_view(snapshot, entry)) for entry in announcement.parts[0].tensors]


shapes = st.lists(
    st.tuples(
        st.lists(st.integers(0, 40), max_size=3),
        st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    ),
    min_size=1,
    max_size=8,
)


@settings(deadline=None, max_examples=40)
@given(shapes, st.integers(0, 2**31))
def test_shared_memory_and_stream_give_the_same_bits(
    shapes: list[tuple[list[int], torch.dtype]], seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    weights = [
        (
            f"layer.{index}",
            torch.randn(shape, generator=generator).to(dtype).mT.clone()
            if len(shape) > 1
            else torch.randn(shape, generator=generator).to(dtype),
        )
        for index, (shape, dtype) in enumerate(shapes)
    ]
    with tempfile.TemporaryDirectory() as folder:
        publisher = WeightsPublisher(Path(folder), "localhost:1", WeightTransport.AUTO)
        announcement = publish(publisher, 1, weights)
        check_announcement(announcement)
        mapped = mapped_at(Path(folder), announcement)
        for snapshot in (mapped.snapshot, memoryview(streamed(publisher, announcement))):
            verify_checksums(snapshot, announcement.parts[0].tensors, "here")
            for (name, tensor), (sent_name, sent) in zip(views(snapshot, announcement), weights, strict=True):
                assert (name, tensor.shape, tensor.dtype) == (sent_name, sent.shape, sent.dtype)
                assert torch.equal(tensor, sent)
        mapped.close()
        publisher.close()


def test_training_continues_while_a_late_worker_reads(publisher: WeightsPublisher, tmp_path: Path) -> None:
    weight = torch.full((1000,), 1.0)
    first = publish(publisher, 1, [("w", weight)])
    late = mapped_at(tmp_path, first)
    ((_, seen),) = views(late.snapshot, first)
    weight.fill_(2.0)
    second = publish(publisher, 2, [("w", weight)])
    weight.fill_(3.0)
    late.check_valid()
    assert torch.equal(seen, torch.full((1000,), 1.0))
    assert streamed(publisher, first) != streamed(publisher, second)
    publish(publisher, 3, [("w", weight)])
    late.check_valid()
    assert torch.equal(seen, torch.full((1000,), 1.0))
    with pytest.raises(SnapshotGone, match=r"version 1 .* overwritten by later ones or never were in"):
        mapped_at(tmp_path, first)
    with pytest.raises(SnapshotGone, match=r"version 1 .* are gone; served are version 3 .* and version 2"):
        streamed(publisher, first)
    assert len(streamed(publisher, second)) == 4000
    late.close()


def test_stream_slower_than_two_publications_fails(publisher: WeightsPublisher) -> None:
    large = torch.zeros(CHUNK_BYTES // 2)  # 4 bytes each: two chunks
    announcement = publish(publisher, 1, [("w", large)])
    chunks = publisher.chunks(refit_pb2.FetchWeightsRequest(weights=announcement.weights))
    first = next(chunks)
    assert (first.offset_bytes, len(first.data)) == (0, CHUNK_BYTES)
    publish(publisher, 2, [("w", large + 1)])
    publish(publisher, 3, [("w", large + 2)])
    with pytest.raises(SnapshotGone):
        next(chunks)


def test_single_tensors_can_be_fetched(publisher: WeightsPublisher) -> None:
    a, b, c = torch.ones(3), torch.full((5,), 2.0), torch.full((7,), 3.0)
    announcement = publish(publisher, 1, [("a", a), ("b", b), ("c", c)])
    request = refit_pb2.FetchWeightsRequest(weights=announcement.weights, tensors=[0, 2])
    # a: 12 bytes at 0; b: 20 at 64; c: 28 at 128.
    assert [(chunk.offset_bytes, chunk.data) for chunk in publisher.chunks(request)] == [
        (0, a.numpy().tobytes()),
        (128, c.numpy().tobytes()),
    ]
    request.tensors.append(3)
    with pytest.raises(NotFound, match="have 3 tensors at rank 0; piece 3 is out of range"):
        list(publisher.chunks(request))


def test_request_for_another_rank_is_refused(tmp_path: Path) -> None:
    publisher = WeightsPublisher(tmp_path, "trainer-1:7000", WeightTransport.STREAM, rank=1)
    weights = publish(publisher, 1, [("w", torch.ones(3))]).weights
    request = refit_pb2.FetchWeightsRequest(weights=weights, rank=1)
    assert [len(chunk.data) for chunk in publisher.chunks(request)] == [12]
    request.rank = 3
    with pytest.raises(
        NotFound, match=r"rank 3's part .* requested from rank 1: .* same address, trainer-1:7000"
    ):
        list(publisher.chunks(request))
    publisher.close()


def test_same_version_of_another_fence_differs(publisher: WeightsPublisher) -> None:
    announcement = publish(publisher, 1, [("w", torch.ones(3))])
    other = batch_pb2.WeightsId(fence=2, version=1, digest=announcement.weights.digest)
    with pytest.raises(SnapshotGone, match=r"version 1 \(fence 2"):
        list(publisher.chunks(refit_pb2.FetchWeightsRequest(weights=other)))


def test_weights_may_grow_and_shrink(publisher: WeightsPublisher, tmp_path: Path) -> None:
    for version, count in enumerate((10, 10, 1000, 5, 2000, 1)):
        announcement = publish(publisher, version, [("w", torch.full((count,), float(version)))])
        mapped = mapped_at(tmp_path, announcement)
        verify_checksums(mapped.snapshot, announcement.parts[0].tensors, "here")
        mapped.close()


def test_unsupported_weights_leave_the_last_snapshot(publisher: WeightsPublisher) -> None:
    first = publish(publisher, 1, [("w", torch.ones(3))])
    with pytest.raises(ValueError, match=r"steps has dtype torch\.int64; weights are .* F32, BF16, F16"):
        publish(publisher, 2, [("w", torch.ones(3)), ("steps", torch.ones(3, dtype=torch.int64))])
    with pytest.raises(ValueError, match="w occurs twice"):
        publish(publisher, 2, [("w", torch.ones(3)), ("w", torch.ones(3))])
    with pytest.raises(ValueError, match="no weights"):
        publish(publisher, 2, [])
    assert len(streamed(publisher, first)) == 12


def test_transport_determines_the_announced_sources(tmp_path: Path) -> None:
    def kinds(transport: WeightTransport, address: str | None) -> list[str | None]:
        publisher = WeightsPublisher(tmp_path, address, transport)
        announcement = publish(publisher, 1, [("w", torch.ones(3))])
        publisher.close()
        return [source.WhichOneof("transport") for source in announcement.parts[0].sources]

    assert kinds(WeightTransport.AUTO, "localhost:1") == ["shared_memory", "stream"]
    assert kinds(WeightTransport.AUTO, None) == ["shared_memory"]
    assert kinds(WeightTransport.SHARED_MEMORY, "localhost:1") == ["shared_memory"]
    assert kinds(WeightTransport.STREAM, "localhost:1") == ["stream"]
    with pytest.raises(ValueError, match="Stream"):
        WeightsPublisher(tmp_path, None, WeightTransport.STREAM)


def test_restarted_publisher_removes_old_files(tmp_path: Path) -> None:
    killed = WeightsPublisher(tmp_path, None, WeightTransport.AUTO)
    announcement = publish(killed, 1, [("w", torch.ones(3))])
    reading = mapped_at(tmp_path, announcement)
    publisher = WeightsPublisher(tmp_path, None, WeightTransport.AUTO)
    assert len(list(tmp_path.iterdir())) == 2
    verify_checksums(reading.snapshot, announcement.parts[0].tensors, "here")
    with pytest.raises(SnapshotGone, match="never were in"):
        mapped_at(tmp_path, announcement)
    reading.close()
    publisher.close()
    assert list(tmp_path.iterdir()) == []


def test_full_memory_file_system_is_an_error(tmp_path: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small file system takes rights that this user does not have")
    try:
        publisher = WeightsPublisher(tmp_path, "localhost:1", WeightTransport.AUTO)
        first = publish(publisher, 1, [("w", torch.ones(1000))])
        with pytest.raises(PublishFailed, match=f"do not go into {tmp_path}: No space left on device"):
            publish(publisher, 2, [("w", torch.ones(1_000_000))])
        assert len(streamed(publisher, first)) == 4000
        publisher.close()
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_another_folder_is_another_host(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert host_identity(tmp_path / "a") == host_identity(tmp_path / "b" / ".." / "a")
    assert host_identity(tmp_path / "a") != host_identity(tmp_path / "b")


def test_snapshot_is_gone_from_the_first_changed_byte(
    publisher: WeightsPublisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader is on a file system without locks."""
    monkeypatch.setattr(shared_memory._OpenFile, "lock", lambda file: False)
    first = publish(publisher, 1, [("w", torch.ones(3))])
    late = mapped_at(tmp_path, first)
    publish(publisher, 2, [("w", torch.ones(3))])

    def while_it_is_written() -> Iterator[tuple[str, Tensor]]:
        with pytest.raises(SnapshotGone):
            late.check_valid()
        with pytest.raises(SnapshotGone):
            streamed(publisher, first)
        yield "w", torch.ones(3)

    late.check_valid()
    publisher.publish(fence=1, version=3, tensors=while_it_is_written(), canary=CANARY)
    late.close()


def test_master_weights_are_published_in_the_requested_precision(
    publisher: WeightsPublisher, tmp_path: Path
) -> None:
    master = torch.randn(3, 1000, generator=torch.Generator().manual_seed(1))
    for version in (1, 2, 3):  # the third publication reuses a mapping
        part = publisher.write([WeightSlice("w", (3, 1000), (0, 0), master, torch.bfloat16)])
        announcement = build_announcement([part], fence=1, version=version, canary=CANARY)
        publisher.seal(announcement.weights)
        check_announcement(announcement)
        (entry,) = part.tensors
        assert (entry.dtype, entry.size_bytes) == ("BF16", 6000)
        mapped = mapped_at(tmp_path, announcement)
        verify_checksums(mapped.snapshot, part.tensors, "here")
        assert torch.equal(views(mapped.snapshot, announcement)[0][1], master.bfloat16())
        mapped.close()
        master.mul_(1.01)
