"""Weights announcements: built once every rank has written its part, and encoded for the bus.

Pure: all ranks compute the same announcement from the same parts.
"""

import struct
from collections.abc import Sequence

import pyarrow
from google.protobuf.message import DecodeError

from kubealign.v1 import batch_pb2, refit_pb2
from kubealign_services.weights.announce.manifest import weights_digest


def build_announcement(
    parts: Sequence[refit_pb2.WeightsPart],
    *,
    fence: int,
    version: int,
    canary: refit_pb2.Canary,
    adapter: refit_pb2.AdapterEncoding | None = None,
    base: batch_pb2.WeightsId | None = None,
) -> refit_pb2.WeightsAnnouncement:
    """Build the announcement of one weights version.

    Args:
        parts: Parts of all ranks.
        adapter: Set when the tensors are those of an adapter; None for full weights.
        base: The weights that the parts' deltas, if any, are relative to.

    Raises:
        ValueError: All parts are empty.
    """
    non_empty = sorted((part for part in parts if part.tensors), key=lambda part: part.rank)
    if not non_empty:
        raise ValueError("there are no weights to publish")
    return refit_pb2.WeightsAnnouncement(
        weights=batch_pb2.WeightsId(fence=fence, version=version, digest=weights_digest(non_empty)),
        parts=non_empty,
        size_bytes=sum(part.size_bytes for part in non_empty),
        base=base if any(part.delta_sizes for part in non_empty) else None,
        canary=canary,
        adapter=adapter,
    )


# About the size of an announcement of a thousand pieces; longer ones compress to a third.
_COMPRESS_ABOVE_BYTES = 64 << 10
# A byte that no protobuf message begins with, then the uncompressed size.
_COMPRESSED_HEADER = struct.Struct("<BI")
_COMPRESSED_MARK = 0
_MAX_UNPACKED_BYTES = 1 << 30


class AnnouncementTooLarge(ValueError):
    """The announcement exceeds the message size limit of the bus. Names the remedies."""


def encode_announcement(announcement: refit_pb2.WeightsAnnouncement, max_bytes: int) -> bytes:
    """Encode an announcement for the bus; long ones are compressed with zstd.

    Args:
        max_bytes: Message size limit of the bus.

    Raises:
        AnnouncementTooLarge: The encoded announcement is longer.
    """
    data = announcement.SerializeToString()
    if len(data) > _COMPRESS_ABOVE_BYTES:
        head = _COMPRESSED_HEADER.pack(_COMPRESSED_MARK, len(data))
        data = head + pyarrow.Codec("zstd").compress(data, asbytes=True)
    if len(data) > max_bytes:
        pieces = sum(len(part.tensors) for part in announcement.parts)
        raise AnnouncementTooLarge(
            f"the announcement of weights version {announcement.weights.version} names {pieces} pieces of "
            f"{len(announcement.parts)} ranks and takes {len(data)} bytes, the bus accepts {max_bytes}: "
            "fewer ranks (spec.trainer.ranks) make fewer pieces, and an adapter (spec.trainer.lora) has few"
        )
    return data


def decode_announcement(data: bytes) -> refit_pb2.WeightsAnnouncement:
    """Decode the result of `encode_announcement`. Raises DecodeError for anything else."""
    if data[:1] == bytes([_COMPRESSED_MARK]):
        if len(data) < _COMPRESSED_HEADER.size:
            raise DecodeError(f"{len(data)} bytes are no announcement of weights")
        _, size = _COMPRESSED_HEADER.unpack(data[: _COMPRESSED_HEADER.size])
        if size > _MAX_UNPACKED_BYTES:
            raise DecodeError(f"an announcement of weights takes {size} bytes, at most {_MAX_UNPACKED_BYTES}")
        try:
            data = pyarrow.Codec("zstd").decompress(data[_COMPRESSED_HEADER.size :], size, asbytes=True)
        except OSError as error:
            raise DecodeError(f"an announcement of weights cannot be decompressed: {error}") from error
    return refit_pb2.WeightsAnnouncement.FromString(data)
