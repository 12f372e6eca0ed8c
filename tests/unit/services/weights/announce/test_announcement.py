"""Announcements of very many pieces: compressed, or refused with the remedies."""

import struct

import pytest
import xxhash
from google.protobuf.message import DecodeError

from kubealign.v1 import batch_pb2, refit_pb2
from kubealign_services.messaging.memory import MemoryBus
from kubealign_services.weights.announce.announcement import (
    AnnouncementTooLarge,
    build_announcement,
    decode_announcement,
    encode_announcement,
)
from kubealign_services.weights.announce.coordinator import RefitCoordinator, RefitFailed

pytestmark = pytest.mark.timeout(60)


def announced(ranks: int, pieces: int) -> refit_pb2.WeightsAnnouncement:
    parts = [
        refit_pb2.WeightsPart(
            rank=rank,
            size_bytes=2 * pieces,
            tensors=[
                refit_pb2.TensorEntry(
                    name=f"model.layers.{piece}.self_attn.q_proj.weight",
                    shape=[64, 4096],
                    start=[64 * rank, 0],
                    whole_shape=[4096, 4096],
                    dtype="BF16",
                    offset_bytes=524288 * piece,
                    size_bytes=524288,
                    checksum=xxhash.xxh3_64_hexdigest(f"{rank}.{piece}".encode()),
                )
                for piece in range(pieces)
            ],
        )
        for rank in range(ranks)
    ]
    return build_announcement(parts, fence=1, version=7, canary=refit_pb2.Canary(tokens=[1, 2]))


def test_short_announcement_is_not_compressed() -> None:
    short = announced(1, 10)
    assert encode_announcement(short, 1 << 20) == short.SerializeToString()
    assert decode_announcement(encode_announcement(short, 1 << 20)) == short


def test_announcement_of_tens_of_thousands_of_pieces_fits() -> None:
    long = announced(16, 3000)
    plain = long.SerializeToString()
    assert len(plain) > 4 << 20
    data = encode_announcement(long, 2 << 20)
    assert decode_announcement(data) == long


def test_too_long_announcement_names_remedies() -> None:
    with pytest.raises(AnnouncementTooLarge) as caught:
        encode_announcement(announced(2, 1000), 10_000)
    text = str(caught.value)
    assert "weights version 7 names 2000 pieces of 2 ranks" in text
    assert "the bus accepts 10000: fewer ranks (spec.trainer.ranks)" in text


async def test_refit_fails_at_once_when_announcement_is_too_long() -> None:
    async def publish(fence: int, version: int) -> refit_pb2.WeightsAnnouncement:
        return announced(2, 1000)

    bus = MemoryBus(max_payload=10_000)
    async with RefitCoordinator(bus, publish, fence=1, min_replicas=1, timeout=30) as broadcast:
        with pytest.raises(RefitFailed, match="names 2000 pieces of 2 ranks"):
            await broadcast.publish(7)
    await bus.close()


@pytest.mark.parametrize(
    "data",
    [
        b"\0\1",
        struct.pack("<BI", 0, 2**31) + b"x",
        struct.pack("<BI", 0, 100) + b"no zstd",
        encode_announcement(announced(1, 1000), 1 << 20)[:-9],
        b"\xff\xff",
    ],
)
def test_invalid_bytes_raise_decode_error(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_announcement(data)


def test_digest_covers_all_parts() -> None:
    one, other = announced(1, 3), announced(2, 3)
    assert one.weights != other.weights
    assert one.weights == batch_pb2.WeightsId(fence=1, version=7, digest=one.weights.digest)
