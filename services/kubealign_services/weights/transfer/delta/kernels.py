"""Compiled loops over the elements of a delta: collecting the changes between two states, and applying them.

Compiled code checks no bounds. The preconditions are documented below; a change beyond its block, which
only the loop itself can detect in bytes from the network, is detected before anything is written there.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numba import int64, types, uint8, uint16, uint32, uint64

from kubealign_services.runtime.numba_kernels import numba_eager

#: Elements. A block stays in the cache, and a distance within one takes 16 bits.
BLOCK = 1 << 16
#: A delta is given up when more than one in this many elements changes: it would be large and slow.
MIN_ELEMENTS_PER_CHANGE = 4
# Additional changes that are allowed early, because changes may be unevenly distributed.
_HEAD_START = 4 * BLOCK

Kernel = Callable[..., int]


def max_changes(size: int) -> int:
    """Return the maximum number of changes that are collected for `size` elements."""
    return size // MIN_ELEMENTS_PER_CHANGE + _HEAD_START


def _compile_collect(bits: Any, lanes: int) -> Kernel:
    """Compile the collect loop.

    Args:
        bits: An element's type.
        lanes: Elements in 8 bytes.
    """
    words = BLOCK // lanes
    is_short = lanes == 4

    @numba_eager(
        int64(
            types.Array(uint64, 1, "C", readonly=True),
            types.Array(uint64, 1, "C", readonly=True),
            types.Array(bits, 1, "C", readonly=True),
            types.Array(bits, 1, "C", readonly=True),
            uint32[::1],
            uint8[:, ::1],
        ),
    )
    def collect(old_words: Any, new_words: Any, old: Any, new: Any, counts: Any, planes: Any) -> Any:
        differing = np.empty(words + 1, np.uint32)
        indices = np.empty(BLOCK + 1, np.uint32)
        differences = np.empty(BLOCK + 1, np.uint32)
        total = int64(0)
        for block in range(counts.size):
            first = block * BLOCK
            size = min(BLOCK, old.size - first)
            whole_words = size // lanes
            # Branch-free, to avoid mispredictions: an entry that is not kept is overwritten by the next one.
            differing_count = np.uint64(0)
            for word in range(whole_words):
                differing[differing_count] = word
                at = block * words + word
                differing_count += np.uint64(old_words[at] != new_words[at])
            count = np.uint64(0)
            for index in range(differing_count):
                position = differing[index] * np.uint32(lanes)
                for _ in range(lanes):
                    before_bits = np.uint32(old[first + position])
                    after = np.uint32(new[first + position])
                    indices[count] = position
                    differences[count] = after - before_bits
                    count += np.uint64(before_bits != after)
                    position += np.uint32(1)
            for rest in range(whole_words * lanes, size):
                before_bits = np.uint32(old[first + rest])
                after = np.uint32(new[first + rest])
                indices[count] = rest
                differences[count] = after - before_bits
                count += np.uint64(before_bits != after)
            counts[block] = count
            if total + int64(count) > min(
                planes.shape[1], (first + size) // MIN_ELEMENTS_PER_CHANGE + _HEAD_START
            ):
                return -1
            before = np.uint32(0xFFFFFFFF)
            for index in range(count):
                gap = indices[index] - before - np.uint32(1)
                before = indices[index]
                planes[0, total + index] = gap & np.uint32(0xFF)
                planes[1, total + index] = gap >> np.uint32(8)
            for index in range(count):
                if is_short:
                    short = np.int16(differences[index])
                    zigzag = np.uint32(np.uint16((short << 1) ^ (short >> 15)))
                else:
                    long = np.int32(differences[index])
                    zigzag = np.uint32((long << 1) ^ (long >> 31))
                planes[2, total + index] = zigzag & np.uint32(0xFF)
                planes[3, total + index] = (zigzag >> np.uint32(8)) & np.uint32(0xFF)
                if not is_short:
                    planes[4, total + index] = (zigzag >> np.uint32(16)) & np.uint32(0xFF)
                    planes[5, total + index] = zigzag >> np.uint32(24)
            total += int64(count)
        return total

    kernel: Kernel = collect
    return kernel


def _compile_apply(bits: Any, lanes: int) -> Kernel:
    """Compile the apply loop. Arguments as for `_compile_collect`."""
    is_short = lanes == 4
    one = np.uint32(1)

    @numba_eager(
        int64(
            bits[::1],
            types.Array(uint32, 1, "C", readonly=True),
            types.Array(uint8, 2, "C", readonly=True),
        ),
    )
    def spread(elements: Any, counts: Any, planes: Any) -> Any:
        done = 0
        for block in range(counts.size):
            first = block * BLOCK
            size = min(BLOCK, elements.size - first)
            position = -1
            for index in range(done, done + int64(counts[block])):
                position += 1 + int64(planes[0, index]) + (int64(planes[1, index]) << 8)
                if position >= size:
                    return first + position
                zigzag = np.uint32(planes[2, index]) | (np.uint32(planes[3, index]) << np.uint32(8))
                if not is_short:
                    zigzag |= np.uint32(planes[4, index]) << np.uint32(16)
                    zigzag |= np.uint32(planes[5, index]) << np.uint32(24)
                difference = (zigzag >> one) ^ (np.uint32(0) - (zigzag & one))
                elements[first + position] += bits(difference)
            done += int64(counts[block])
        return -1

    kernel: Kernel = spread
    return kernel


#: Bytes of an element -> unsigned integer type of its bits.
BIT_DTYPES: Mapping[int, type[Any]] = {2: np.uint16, 4: np.uint32}

#: Bytes of an element -> collect(old words of 8 bytes, new words, old, new, counts, planes): writes the
#: number of changes of each block to counts [blocks] and their bytes to the first columns of planes
#: [2 + itemsize, max_changes(size)]. Returns the total, or -1 when the changes are too dense. old and new
#: have the same size; the words cover their full words.
COLLECT_CHANGES: Mapping[int, Kernel] = {2: _compile_collect(uint16, 4), 4: _compile_collect(uint32, 2)}

#: Bytes of an element -> apply(elements, counts, planes): applies the changes in place. Returns -1, or the
#: first index beyond its block, before anything is written there. counts [blocks] are at most BLOCK each, and
#: their sum is the number of columns of planes [2 + itemsize, changes].
APPLY_CHANGES: Mapping[int, Kernel] = {2: _compile_apply(uint16, 4), 4: _compile_apply(uint32, 2)}
