"""What changed between two states of one piece of weights, without loss.

Elements are compared as bits, block after block. Where they differ, the distance from the change before it in
the block (less one) and the difference of the bits as integers, zigzag, are stored: most changes of a small
step are one unit in the last place, so both are small numbers. They lie byte plane by byte plane, so that the
high planes are zeros, under zstd.

Layout, little-endian: how many changes each block of 65,536 elements has, 4 bytes each; then, compressed, the
planes of all distances (2 bytes each) and those of all differences.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow

# Blocks stay in the cache, and a distance within one takes 16 bits.
_BLOCK = 1 << 16
_CODEC = "zstd"
_LEVEL = 1
#: Bytes of an element -> its bits, unsigned and signed.
_BITS: dict[int, tuple[type[Any], type[Any]]] = {2: (np.uint16, np.int16), 4: (np.uint32, np.int32)}

Numbers = npt.NDArray[Any]


class BadDelta(ValueError):
    """The bytes are no delta of a piece of this size."""


def encode(old: bytes | memoryview, new: bytes | memoryview, itemsize: int) -> bytes:
    """The changes that make `new` of `old`: two states of as many elements of 2 or 4 bytes."""
    unsigned, signed = _BITS[itemsize]
    before, after = np.frombuffer(old, unsigned), np.frombuffer(new, unsigned)
    if before.size != after.size:
        raise ValueError(f"{before.size} elements cannot become {after.size}")
    counts = np.zeros(-(-before.size // _BLOCK), np.uint32)
    gaps: list[Numbers] = []
    changes: list[Numbers] = []
    for index, (first, last) in enumerate(_blocks(before.size)):
        one, other = before[first:last], after[first:last]
        changed = np.flatnonzero(one != other)
        counts[index] = changed.size
        gaps.append((np.diff(changed, prepend=-1) - 1).astype(np.uint16))
        differences = (other[changed] - one[changed]).view(signed)
        # 0, -1, 1, -2, ... become 0, 1, 2, 3, ...
        changes.append(((differences << 1) ^ (differences >> (8 * itemsize - 1))).view(unsigned))
    if not counts.any():
        return counts.tobytes()
    plain = np.concatenate([_planes(np.concatenate(gaps)), _planes(np.concatenate(changes))])
    codec = pyarrow.Codec(_CODEC, compression_level=_LEVEL)
    return counts.tobytes() + bytes(codec.compress(plain, asbytes=True))


def apply(state: memoryview, delta: memoryview, itemsize: int) -> None:
    """Make the new state of the old one, in place. Raises BadDelta; some may have changed by then."""
    unsigned, _ = _BITS[itemsize]
    elements = np.frombuffer(state, unsigned)
    blocks = -(-elements.size // _BLOCK)
    if len(delta) < 4 * blocks:
        raise BadDelta(f"{len(delta)} bytes are no delta of {elements.size} elements")
    counts = np.frombuffer(delta[: 4 * blocks], np.uint32).astype(np.int64)
    total = int(counts.sum())
    if counts.max(initial=0) > _BLOCK:
        raise BadDelta(f"a block of {_BLOCK} elements has {counts.max()} changes")
    if not total:
        return
    plain = _unpacked(delta[4 * blocks :], total * (2 + itemsize))
    gaps = _numbers(plain[: 2 * total], np.uint16)
    zigzag = _numbers(plain[2 * total :], unsigned)
    differences = (zigzag >> 1) ^ (~(zigzag & 1) + 1).astype(unsigned)
    done = 0
    for count, (first, last) in zip(counts.tolist(), _blocks(elements.size), strict=True):
        taken = slice(done, done + count)
        places = np.cumsum(gaps[taken] + np.int64(1)) - 1
        if count and places[-1] >= last - first:
            raise BadDelta(f"a change of element {places[-1]} of a block of {last - first}")
        elements[first:last][places] += differences[taken]
        done += count


def _blocks(size: int) -> Iterator[tuple[int, int]]:
    return ((first, min(first + _BLOCK, size)) for first in range(0, size, _BLOCK))


def _unpacked(data: memoryview, size: int) -> Numbers:
    try:
        plain = pyarrow.Codec(_CODEC, compression_level=_LEVEL).decompress(data, size, asbytes=True)
    except OSError as error:
        raise BadDelta(f"the changes cannot be unpacked: {error}") from error
    if len(plain) != size:
        raise BadDelta(f"the changes take {len(plain)} bytes, not {size}")
    return np.frombuffer(plain, np.uint8)


def _planes(values: Numbers) -> Numbers:
    """The values' bytes: the lowest of all of them first, the highest last."""
    return np.ascontiguousarray(values.view(np.uint8).reshape(-1, values.itemsize).T).reshape(-1)


def _numbers(planes: Numbers, kind: type[Any]) -> Numbers:
    """What `_planes` took apart."""
    width = np.dtype(kind).itemsize
    return np.ascontiguousarray(planes.reshape(width, -1).T).reshape(-1).view(kind)
