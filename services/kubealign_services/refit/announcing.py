"""What is told of weights, once every rank has its part written, and how it travels over the bus. Pure: all
ranks make the same of the same."""

import struct
from collections.abc import Sequence

import pyarrow
from google.protobuf.message import DecodeError

from kubealign.v1 import batch_pb2, refit_pb2
from kubealign_services.refit.manifest import weights_digest


def announcement_of(
    parts: Sequence[refit_pb2.WeightsPart],
    *,
    fence: int,
    version: int,
    canary: refit_pb2.Canary,
    adapter: refit_pb2.AdapterEncoding | None = None,
    base: batch_pb2.WeightsId | None = None,
) -> refit_pb2.WeightsAnnouncement:
    """parts: of all ranks. adapter: the tensors are an adapter's; None: they are all weights. base: what the
    parts' deltas, if they have any, are changes to.

    Raises ValueError when there is nothing in any part."""
    held = sorted((part for part in parts if part.tensors), key=lambda part: part.rank)
    if not held:
        raise ValueError("there are no weights to publish")
    return refit_pb2.WeightsAnnouncement(
        weights=batch_pb2.WeightsId(fence=fence, version=version, digest=weights_digest(held)),
        parts=held,
        size_bytes=sum(part.size_bytes for part in held),
        base=base if any(part.delta_sizes for part in held) else None,
        canary=canary,
        adapter=adapter,
    )


# An announcement of a thousand pieces is as long; those of more shrink to a third.
_PLAIN_BYTES = 64 << 10
# No message of protobuf begins with it. Then the size of what is packed.
_PACKED = struct.Struct("<BI")
_MARK = 0
_MOST_UNPACKED = 1 << 30


class AnnouncementTooLarge(ValueError):
    """The bus does not take it. Says what would help."""


def on_the_bus(announcement: refit_pb2.WeightsAnnouncement, most: int) -> bytes:
    """As it travels: long ones under zstd. most: bytes that the bus takes. Raises AnnouncementTooLarge."""
    data = announcement.SerializeToString()
    if len(data) > _PLAIN_BYTES:
        head = _PACKED.pack(_MARK, len(data))
        data = head + pyarrow.Codec("zstd").compress(data, asbytes=True)
    if len(data) > most:
        pieces = sum(len(part.tensors) for part in announcement.parts)
        raise AnnouncementTooLarge(
            f"the announcement of weights version {announcement.weights.version} names {pieces} pieces of "
            f"{len(announcement.parts)} ranks and takes {len(data)} bytes, the bus takes {most}: fewer ranks "
            "(spec.trainer.ranks) make fewer pieces, and an adapter (spec.trainer.lora) has few"
        )
    return data


def from_the_bus(data: bytes) -> refit_pb2.WeightsAnnouncement:
    """What `on_the_bus` made. Raises DecodeError for anything else."""
    if data[:1] == bytes([_MARK]):
        if len(data) < _PACKED.size:
            raise DecodeError(f"{len(data)} bytes are no announcement of weights")
        _, size = _PACKED.unpack(data[: _PACKED.size])
        if size > _MOST_UNPACKED:
            raise DecodeError(f"an announcement of weights takes {size} bytes, at most {_MOST_UNPACKED}")
        try:
            data = pyarrow.Codec("zstd").decompress(data[_PACKED.size :], size, asbytes=True)
        except OSError as error:
            raise DecodeError(f"an announcement of weights cannot be unpacked: {error}") from error
    return refit_pb2.WeightsAnnouncement.FromString(data)
