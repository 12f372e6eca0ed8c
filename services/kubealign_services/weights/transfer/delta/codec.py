"""Lossless delta encoding between two states of one weights piece.

Elements are compared as bits, in blocks of 65,536. For each change, the distance from the previous change
in the block (less one) and the zigzag-encoded difference of the bits as integers are stored: most changes
of a small step are one unit in the last place, so both are small numbers. They are stored byte plane by
byte plane, so that the high planes are zeros, under zstd.

Layout, little-endian:

| bytes | |
| --- | --- |
| 8 | xxh3-64 of all following bytes |
| 1 | 0: changes follow. 1: the new state itself, when too much changed |
| 4 each | number of changes of each block |
| the rest | compressed: the planes of all distances (2), then of all differences (2 or 4) |
"""

import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow
import xxhash

from kubealign_services.weights.transfer.delta.kernels import (
    APPLY_CHANGES,
    BIT_DTYPES,
    BLOCK,
    COLLECT_CHANGES,
    max_changes,
)

_CODEC = "zstd"
_LEVEL = 1
_CHECKSUM = struct.Struct("<Q")
_KIND_CHANGES, _KIND_NEW_STATE = b"\0", b"\1"
_HEAD_BYTES = _CHECKSUM.size + 1
# Number of bytes that the compiled loops compare at once.
_WORD_BYTES = 8

BitArray = npt.NDArray[Any]
Buffer = bytes | bytearray | memoryview


class BadDelta(ValueError):
    """The bytes are not a delta of a piece of this size."""


def encode_delta(old: Buffer, new: Buffer, itemsize: int) -> bytes:
    """Encode the changes from `old` to `new`: two states of as many elements of 2 or 4 bytes.

    Contains the new state itself when more than a quarter of the elements changed (detected early), or
    when that is smaller.
    """
    before, after = _as_elements(old, itemsize), _as_elements(new, itemsize)
    if before.size != after.size:
        raise ValueError(f"the old state has {before.size} elements, the new one {after.size}")
    counts = np.zeros(_block_count(before.size), np.uint32)
    planes = np.empty((2 + itemsize, max_changes(before.size)), np.uint8)
    total = COLLECT_CHANGES[itemsize](_as_words(before), _as_words(after), before, after, counts, planes)
    if total < 0:
        return _with_checksum(_KIND_NEW_STATE, after.data)
    if total == 0:
        return _with_checksum(_KIND_CHANGES, counts.data)
    codec = pyarrow.Codec(_CODEC, compression_level=_LEVEL)
    packed = codec.compress(np.ascontiguousarray(planes[:, :total]).reshape(-1))
    if counts.nbytes + packed.size >= after.nbytes:
        return _with_checksum(_KIND_NEW_STATE, after.data)
    return _with_checksum(_KIND_CHANGES, counts.data, memoryview(packed))


def check_delta(delta: Buffer) -> None:
    """Raise BadDelta when the checksum shows that the bytes are not a result of `encode_delta`."""
    if len(delta) < _HEAD_BYTES:
        raise BadDelta(f"{len(delta)} bytes are too few for a delta")
    view = memoryview(delta)
    if xxhash.xxh3_64_intdigest(view[_CHECKSUM.size :]) != _CHECKSUM.unpack(view[: _CHECKSUM.size])[0]:
        raise BadDelta(f"the checksum of {len(delta)} bytes of changes is wrong")


def apply_delta(state: memoryview, delta: memoryview, itemsize: int) -> None:
    """Change the old state into the new one, in place.

    Raises BadDelta. When the checksum is right but the contents are invalid, part of the state may have
    changed by then.
    """
    check_delta(delta)
    kind, body = bytes(delta[_CHECKSUM.size : _HEAD_BYTES]), delta[_HEAD_BYTES:]
    if kind == _KIND_NEW_STATE:
        if len(body) != len(state):
            raise BadDelta(f"{len(body)} bytes cannot replace {len(state)}")
        state[:] = body
    elif kind == _KIND_CHANGES:
        _apply_changes(_as_elements(state, itemsize), body, itemsize)
    else:
        raise BadDelta(f"the kind is {kind[0]}; it may be 0 or 1")


def _apply_changes(elements: BitArray, body: memoryview, itemsize: int) -> None:
    blocks = _block_count(elements.size)
    if len(body) < 4 * blocks:
        raise BadDelta(f"{len(body)} bytes are too few for the changes of {elements.size} elements")
    counts = np.frombuffer(body[: 4 * blocks], "<u4").astype(np.uint32)
    if counts.max(initial=0) > BLOCK:
        raise BadDelta(f"a block of {BLOCK} elements has {counts.max()} changes")
    total = int(counts.sum(dtype=np.int64))
    if not total:
        return
    planes = _decompress(body[4 * blocks :], total * (2 + itemsize)).reshape(2 + itemsize, total)
    overrun = APPLY_CHANGES[itemsize](elements, counts, planes)
    if overrun >= 0:
        raise BadDelta(f"a change of element {overrun}, beyond its block: there are {elements.size}")


def _with_checksum(*contents: bytes | memoryview) -> bytes:
    checksum = xxhash.xxh3_64()
    for content in contents:
        checksum.update(content)
    return b"".join((_CHECKSUM.pack(checksum.intdigest()), *contents))


def _as_elements(state: Buffer, itemsize: int) -> BitArray:
    """Return the state as unsigned integers.

    Raises ValueError for a buffer that is not aligned to 8 bytes; a snapshot's pieces are.
    """
    elements = np.frombuffer(state, BIT_DTYPES[itemsize])
    if elements.size and elements.ctypes.data % _WORD_BYTES:
        raise ValueError("the state does not begin at a multiple of 8 bytes in memory")
    return elements


def _as_words(elements: BitArray) -> BitArray:
    word_bytes = elements.nbytes // _WORD_BYTES * _WORD_BYTES
    return elements.view(np.uint8)[:word_bytes].view(np.uint64)


def _block_count(size: int) -> int:
    return -(-size // BLOCK)


def _decompress(data: memoryview, size: int) -> BitArray:
    try:
        plain = pyarrow.Codec(_CODEC, compression_level=_LEVEL).decompress(data, size, asbytes=True)
    except OSError as error:
        raise BadDelta(f"the changes cannot be decompressed: {error}") from error
    if len(plain) != size:
        raise BadDelta(f"the changes take {len(plain)} bytes, not {size}")
    return np.frombuffer(plain, np.uint8)
