"""Transfers from several ranks to one receiver that selects ranges, with dense bytes and deltas."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kubealign.spec.sections.rollout import WeightEncoding, WeightTransport
from kubealign.v1 import refit_pb2
from kubealign_services.runtime.rpc.errors import NotFound, Unreachable
from kubealign_services.training.weight_slices import WeightSlice
from kubealign_services.weights.announce.announcement import build_announcement
from kubealign_services.weights.announce.manifest import BadManifest, CorruptTransfer
from kubealign_services.weights.announce.tensor_regions import Box
from kubealign_services.weights.receive.receiver import WeightsReceiver
from kubealign_services.weights.receive.transfer_plan import RangeSelector
from kubealign_services.weights.send.publisher import WeightsPublisher
from kubealign_services.weights.send.snapshot_file import HEADER_BYTES

pytestmark = pytest.mark.timeout(60)

Chunk = refit_pb2.WeightsChunk


class Ranks:
    """Two ranks of one machine: `w` is split between them by rows, only rank 1 has `b`. Streams pass through
    `harm`, which gets the rank, and are counted with their requests.
    """

    def __init__(self, folder: Path, transport: WeightTransport, encoding: WeightEncoding) -> None:
        self.folder = folder
        self.publishers = [
            WeightsPublisher(folder, f"trainer-{rank}:1", transport, rank=rank, encoding=encoding)
            for rank in range(2)
        ]
        generator = torch.Generator().manual_seed(5)
        self.weights = {
            "w": torch.randn(64, 50, generator=generator).bfloat16(),
            "b": torch.randn(300, generator=generator),
        }
        self.asked: list[tuple[int, bool]] = []
        self.harm: Callable[[int, Chunk], None] = lambda rank, chunk: None
        self.gone: set[int] = set()

    def slices(self, rank: int) -> Iterator[WeightSlice]:
        rows = slice(0, 40) if rank == 0 else slice(40, 64)
        yield WeightSlice("w", (64, 50), (rows.start, 0), self.weights["w"][rows])
        if rank == 1:
            yield WeightSlice.from_full_tensor("b", self.weights["b"])

    def publish(self, version: int) -> refit_pb2.WeightsAnnouncement:
        base = self.publishers[0].delta_base
        parts = [publisher.write(self.slices(rank)) for rank, publisher in enumerate(self.publishers)]
        created = build_announcement(parts, fence=1, version=version, canary=refit_pb2.Canary(), base=base)
        for publisher in self.publishers:
            publisher.seal(created.weights)
        return created

    def step(self) -> None:
        """Change some elements of both tensors slightly."""
        self.weights["w"][::7, 3] *= 1.01
        self.weights["b"][5:9] += 1.0

    async def stream(
        self, address: str, request: refit_pb2.FetchWeightsRequest, timeout: float
    ) -> AsyncGenerator[Chunk]:
        rank = int(address.removeprefix("trainer-").removesuffix(":1"))
        self.asked.append((rank, request.delta))
        if rank in self.gone:
            raise Unreachable(f"nobody at {address}")
        for chunk in self.publishers[rank].chunks(request):
            self.harm(rank, chunk)
            yield chunk
            await asyncio.sleep(0)

    def receiver(
        self,
        near: bool,
        selector: RangeSelector | None = None,
        encoding: WeightEncoding = WeightEncoding.DENSE,
    ) -> WeightsReceiver:
        folder = self.folder if near else self.folder / "nowhere"
        return WeightsReceiver(folder, self.stream, 10.0, selector, encoding)

    def flip(self, part: refit_pb2.WeightsPart, offset: int) -> None:
        """Flip a byte in the part's segment, like a stray write."""
        path = self.folder / part.sources[0].shared_memory.name
        data = bytearray(path.read_bytes())
        data[HEADER_BYTES + offset] ^= 1
        path.write_bytes(data)

    def close(self) -> None:
        for publisher in self.publishers:
            publisher.close()


Start = Callable[..., Ranks]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    created: list[Ranks] = []

    def create(
        transport: WeightTransport = WeightTransport.AUTO, encoding: WeightEncoding = WeightEncoding.DENSE
    ) -> Ranks:
        created.append(Ranks(tmp_path, transport, encoding))
        return created[-1]

    yield create
    for ranks in created:
        ranks.close()


async def taken(
    receiver: WeightsReceiver, announcement: refit_pb2.WeightsAnnouncement
) -> tuple[dict[str, Tensor], str, int, int]:
    """Return the tensors that an engine copied, transport, received bytes, and number of delta parts."""
    async with receiver.fetch(announcement) as transfer:
        copied = {name: tensor.clone() for name, tensor in transfer.tensors}
        transfer.check_valid()
        return copied, transfer.transport, transfer.received_bytes, transfer.delta_parts


# w: 64 x 50 of 2 bytes; rank 0 has 4000, rank 1 has 2400 of it and 300 x 4 of b, from 2432 on.
DENSE = 4000 + 2400 + 1200


def same(actual: dict[str, Tensor], weights: dict[str, Tensor]) -> bool:
    return actual.keys() == weights.keys() and all(
        torch.equal(actual[name], weights[name]) for name in weights
    )


@pytest.mark.parametrize("near", [True, False], ids=["shared memory", "stream"])
async def test_full_tensors_are_assembled_from_two_ranks(start: Start, near: bool) -> None:
    ranks = start()
    receiver = ranks.receiver(near)
    for version in range(3):
        announcement = ranks.publish(version)
        assert [part.size_bytes for part in announcement.parts] == [4000, 3632]
        assert announcement.size_bytes == 7632 and not announcement.HasField("base")
        tensors, transport, received, deltas = await taken(receiver, announcement)
        assert same(tensors, ranks.weights)
        # A stream carries the padding between neighbours too.
        assert (transport, received, deltas) == (("shared_memory", DENSE, 0) if near else ("stream", 7632, 0))
        ranks.step()
    assert len(ranks.asked) == (0 if near else 6)


async def test_split_engine_fetches_only_its_ranges(start: Start) -> None:
    ranks = start(WeightTransport.STREAM)

    def columns(name: str, shape: tuple[int, ...]) -> list[Box]:
        """Rows 0 to 40 of the matrix, its right half."""
        return [Box((0, 25), (40, 25))] if name == "w" else []

    announcement = ranks.publish(0)
    async with ranks.receiver(near=False, selector=columns).fetch(announcement) as transfer:
        (piece,) = transfer.tensors.slices()
        assert (piece.name, piece.shape, piece.start) == ("w", (64, 50), (0, 25))
        assert torch.equal(piece.tensor, ranks.weights["w"][:40, 25:])
        assert transfer.received_bytes == 4000
    # The rank without requested elements received no request.
    assert ranks.asked == [(0, False)]


async def test_corrupt_part_of_one_rank_is_reported_and_fetched_from_another_source(start: Start) -> None:
    ranks = start()
    announcement = ranks.publish(0)
    ranks.flip(announcement.parts[1], 2440)
    for near in (True, False):
        with pytest.raises(CorruptTransfer, match=r"the part of rank 1: 1 of 2 tensors from .*: b"):
            await taken(ranks.receiver(near), announcement)
    ranks.flip(announcement.parts[1], 2440)

    def once(rank: int, chunk: Chunk) -> None:
        if ranks.asked.count((1, False)) == 1 and rank == 1:
            chunk.data = bytes([chunk.data[0] ^ 1]) + chunk.data[1:]

    ranks.asked.clear()
    ranks.harm = once
    announcement = ranks.publish(1)
    tensors, *_ = await taken(ranks.receiver(near=False), announcement)
    assert same(tensors, ranks.weights)
    # The corrupt part was requested once more, the other was not.
    assert sorted(ranks.asked) == [(0, False), (1, False), (1, False)]


async def test_missing_part_of_one_rank_is_reported(start: Start) -> None:
    ranks = start()
    announcement = ranks.publish(0)
    (ranks.folder / announcement.parts[0].sources[0].shared_memory.name).unlink()
    # The file is removed; the stream still serves.
    tensors, transport, *_ = await taken(ranks.receiver(near=True), announcement)
    assert same(tensors, ranks.weights) and transport == "stream"
    ranks.gone.add(0)
    with pytest.raises(Unreachable, match=r"the part of rank 0: .*nobody at trainer-0:1"):
        await taken(ranks.receiver(near=False), announcement)
    late = ranks.publish(1)
    ranks.publish(2)
    ranks.publish(3)
    ranks.gone.clear()
    with pytest.raises(NotFound, match=r"the part of rank [01]: weights version 1 .* are gone"):
        await taken(ranks.receiver(near=False), late)


async def test_manifest_without_a_ranks_part_is_refused(start: Start) -> None:
    announcement = start().publish(0)
    del announcement.parts[1]
    announcement.size_bytes = 4000
    receiver = WeightsReceiver(Path("/nowhere"), None, 1.0)  # type: ignore[arg-type]
    with pytest.raises(BadManifest, match=r"w: \[40:64, 0:50\] of \[64, 50\] is in no part"):
        await taken(receiver, announcement)


async def test_only_deltas_are_streamed_after_the_first_version(start: Start) -> None:
    ranks = start(encoding=WeightEncoding.DELTA)
    near, far = (ranks.receiver(at_home, encoding=WeightEncoding.DELTA) for at_home in (True, False))
    plain = ranks.receiver(near=False)
    for version in range(4):
        announcement = ranks.publish(version)
        assert announcement.HasField("base") == (version > 0)
        ranks.asked.clear()
        tensors, transport, received, deltas = await taken(far, announcement)
        assert same(tensors, ranks.weights)
        assert sorted(ranks.asked) == [(0, version > 0), (1, version > 0)]
        assert (transport, deltas) == ("stream", 2 if version else 0)
        if version:
            assert received == sum(sum(part.delta_sizes) for part in announcement.parts)
            assert received < DENSE / 8
        # Shared memory needs no stream, and a receiver without a cached base fetches everything.
        tensors, transport, received, deltas = await taken(near, announcement)
        assert (same(tensors, ranks.weights), transport, received, deltas) == (
            True,
            "shared_memory",
            DENSE,
            0,
        )
        tensors, _, received, deltas = await taken(plain, announcement)
        assert (same(tensors, ranks.weights), received, deltas) == (True, 7632, 0)
        ranks.step()


async def test_receiver_without_the_base_fetches_everything(start: Start) -> None:
    """A late receiver, one that missed a version, and one whose last refit failed."""
    ranks = start(WeightTransport.STREAM, WeightEncoding.DELTA)
    receiver = ranks.receiver(near=False, encoding=WeightEncoding.DELTA)

    async def deltas(who: WeightsReceiver, announcement: refit_pb2.WeightsAnnouncement) -> int:
        ranks.asked.clear()
        tensors, _, _, count = await taken(who, announcement)
        assert same(tensors, ranks.weights)
        # Unusable deltas are not requested either.
        assert [delta for _, delta in ranks.asked].count(True) == count
        return count

    assert await deltas(receiver, ranks.publish(0)) == 0
    ranks.step()
    assert await deltas(receiver, ranks.publish(1)) == 2
    ranks.step()
    assert await deltas(ranks.receiver(near=False, encoding=WeightEncoding.DELTA), ranks.publish(2)) == 0
    ranks.step()
    assert await deltas(receiver, ranks.publish(3)) == 0
    ranks.step()
    assert await deltas(receiver, ranks.publish(4)) == 2
    ranks.step()
    fifth = ranks.publish(5)
    with pytest.raises(RuntimeError, match="the canary"):
        async with receiver.fetch(fifth):
            raise RuntimeError("the canary")
    ranks.step()
    assert await deltas(receiver, ranks.publish(6)) == 0
    ranks.step()
    assert await deltas(receiver, ranks.publish(7)) == 2


@pytest.mark.parametrize("how", ["flipped", "cut", "gone"])
async def test_invalid_delta_is_followed_by_a_full_transfer(start: Start, how: str) -> None:
    ranks = start(WeightTransport.STREAM, WeightEncoding.DELTA)
    receiver = ranks.receiver(near=False, encoding=WeightEncoding.DELTA)
    await taken(receiver, ranks.publish(0))
    ranks.step()
    announcement = ranks.publish(1)
    ranks.asked.clear()

    def harm(rank: int, chunk: Chunk) -> None:
        if rank == 0 and (0, False) not in ranks.asked:
            if how == "gone":
                raise NotFound("no deltas here")
            # The last byte of the compressed delta: it unpacks to other changes or fails to unpack.
            end = b"" if how == "cut" else bytes([chunk.data[-1] ^ 0x40])
            chunk.data = chunk.data[:-1] + end

    ranks.harm = harm
    tensors, _, _, deltas = await taken(receiver, announcement)
    assert same(tensors, ranks.weights)
    assert sorted(ranks.asked) == [(0, False), (0, True), (1, True)] and deltas == 1
    # Later transfers use deltas again, also for the part that was fetched in full.
    ranks.harm = lambda rank, chunk: None
    ranks.step()
    tensors, _, _, deltas = await taken(receiver, ranks.publish(2))
    assert same(tensors, ranks.weights) and deltas == 2


async def test_part_with_large_delta_is_sent_dense(start: Start) -> None:
    ranks = start(WeightTransport.STREAM, WeightEncoding.DELTA)
    receiver = ranks.receiver(near=False, encoding=WeightEncoding.DELTA)
    await taken(receiver, ranks.publish(0))
    # Random bits in all of `w`; of rank 1's part that is two thirds.
    generator = torch.Generator().manual_seed(9)
    bits = torch.randint(0, 1 << 15, (64, 50), generator=generator, dtype=torch.int16)
    ranks.weights["w"] = bits.view(torch.bfloat16).nan_to_num()
    announcement = ranks.publish(1)
    assert [len(part.delta_sizes) for part in announcement.parts] == [0, 2]
    tensors, _, _, deltas = await taken(receiver, announcement)
    assert same(tensors, ranks.weights) and deltas == 1
    # A tensor of another shape has no delta to the old one.
    ranks.weights["b"] = torch.zeros(299)
    announcement = ranks.publish(2)
    assert [len(part.delta_sizes) for part in announcement.parts] == [1, 0]
    tensors, _, _, deltas = await taken(receiver, announcement)
    assert same(tensors, ranks.weights) and deltas == 1


async def test_split_engine_fetches_only_its_deltas(start: Start) -> None:
    ranks = start(WeightTransport.STREAM, WeightEncoding.DELTA)

    def bias(name: str, shape: tuple[int, ...]) -> list[Box]:
        return [Box((4,), (3,))] if name == "b" else []

    receiver = ranks.receiver(near=False, selector=bias, encoding=WeightEncoding.DELTA)
    await taken(receiver, ranks.publish(0))
    ranks.step()
    announcement = ranks.publish(1)
    tensors, _, received, deltas = await taken(receiver, announcement)
    assert torch.equal(tensors["b"], ranks.weights["b"][4:7])
    assert (received, deltas) == (announcement.parts[1].delta_sizes[1], 1)
