"""The loops over the elements of a delta, compiled: where two states differ, and making the new one of the
old.

Compiled code checks no bounds. What a caller must have seen to is said here; what only the loop itself can
see of bytes that came off a wire, a change beyond its block, it finds before it writes there.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numba import int64, types, uint8, uint16, uint32, uint64

from kubealign_services.compiled import compiled_at_once

#: Elements. A block stays in the cache, and a distance within one takes 16 bits.
BLOCK = 1 << 16
#: Where more than one in so many elements changes, there is little to gain and much to compute.
DENSEST = 4
# So many more may come first: a piece need not change evenly.
_HEAD_START = 4 * BLOCK

Kernel = Callable[..., int]


def room(size: int) -> int:
    """The most changes that are kept of so many elements."""
    return size // DENSEST + _HEAD_START


def _collector(bits: Any, lanes: int) -> Kernel:
    """bits: an element's type. lanes: elements in 8 bytes."""
    words = BLOCK // lanes
    is_short = lanes == 4

    @compiled_at_once(
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
        places = np.empty(BLOCK + 1, np.uint32)
        moves = np.empty(BLOCK + 1, np.uint32)
        total = int64(0)
        for block in range(counts.size):
            first = block * BLOCK
            size = min(BLOCK, old.size - first)
            whole_words = size // lanes
            # No branches, which would be foreseen wrongly: the next one writes over what is not kept.
            found = np.uint64(0)
            for word in range(whole_words):
                differing[found] = word
                found += np.uint64(old_words[block * words + word] != new_words[block * words + word])
            count = np.uint64(0)
            for index in range(found):
                place = differing[index] * np.uint32(lanes)
                for _ in range(lanes):
                    one = np.uint32(old[first + place])
                    other = np.uint32(new[first + place])
                    places[count] = place
                    moves[count] = other - one
                    count += np.uint64(one != other)
                    place += np.uint32(1)
            for rest in range(whole_words * lanes, size):
                one = np.uint32(old[first + rest])
                other = np.uint32(new[first + rest])
                places[count] = rest
                moves[count] = other - one
                count += np.uint64(one != other)
            counts[block] = count
            if total + int64(count) > min(planes.shape[1], (first + size) // DENSEST + _HEAD_START):
                return -1
            before = np.uint32(0xFFFFFFFF)
            for index in range(count):
                gap = places[index] - before - np.uint32(1)
                before = places[index]
                planes[0, total + index] = gap & np.uint32(0xFF)
                planes[1, total + index] = gap >> np.uint32(8)
            for index in range(count):
                if is_short:
                    short = np.int16(moves[index])
                    zigzag = np.uint32(np.uint16((short << 1) ^ (short >> 15)))
                else:
                    long = np.int32(moves[index])
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


def _spreader(bits: Any, lanes: int) -> Kernel:
    """As `_collector`."""
    is_short = lanes == 4
    one = np.uint32(1)

    @compiled_at_once(
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
            place = -1
            for index in range(done, done + int64(counts[block])):
                place += 1 + int64(planes[0, index]) + (int64(planes[1, index]) << 8)
                if place >= size:
                    return first + place
                zigzag = np.uint32(planes[2, index]) | (np.uint32(planes[3, index]) << np.uint32(8))
                if not is_short:
                    zigzag |= np.uint32(planes[4, index]) << np.uint32(16)
                    zigzag |= np.uint32(planes[5, index]) << np.uint32(24)
                move = (zigzag >> one) ^ (np.uint32(0) - (zigzag & one))
                elements[first + place] += bits(move)
            done += int64(counts[block])
        return -1

    kernel: Kernel = spread
    return kernel


#: Bytes of an element -> its bits.
BITS: Mapping[int, type[Any]] = {2: np.uint16, 4: np.uint32}

#: Bytes of an element -> collect(old 8 bytes at a time, new likewise, old, new, counts, planes): how many
#: changes each block has into counts [blocks], their bytes into the first columns of planes
#: [2 + itemsize, room(size)]; returns how many there are, or -1 where there are more than DENSEST lets. old
#: and new have the same size; the words are those of their beginning.
COLLECT: Mapping[int, Kernel] = {2: _collector(uint16, 4), 4: _collector(uint32, 2)}

#: Bytes of an element -> spread(elements, counts, planes): the changes made, in place; returns -1, or the
#: first place beyond its block, before anything is written there. counts [blocks] are BLOCK at most, and make
#: as many together as planes [2 + itemsize, changes] has columns.
SPREAD: Mapping[int, Kernel] = {2: _spreader(uint16, 4), 4: _spreader(uint32, 2)}
