"""Copies or narrows bytes and computes their xxh3-64 in the same pass.

Receivers verify with the library instead, because reading alone is not faster this way.
"""

from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from kubealign_services.runtime.numba_kernels import numba_eager
from kubealign_services.weights.verify.xxh3_kernels import (
    BLOCK,
    LAST_KEY_OFFSET,
    SECRET,
    SHORT_INPUT_BYTES,
    STRIPE,
    absorb_stripes,
    copy_op,
    finalize,
    init_lanes,
    narrow_op,
    store_fence,
)

Bytes = NDArray[np.uint8]

_KEYS = np.frombuffer(SECRET, np.uint8)
_PER_BLOCK = BLOCK // STRIPE


def copy_with_checksum(target: Bytes, source: Bytes) -> str:
    """Copy contiguous bytes to a target of equal length; return their xxh3-64, hexadecimal."""
    size = len(source)
    if size <= SHORT_INPUT_BYTES or target.ctypes.data % STRIPE:
        np.copyto(target, source)
        return str(xxhash.xxh3_64_hexdigest(target.data))
    lanes = init_lanes()
    _copy_stripes(target.ctypes.data, source.ctypes.data, size, lanes.ctypes.data, _KEYS.ctypes.data)
    stored = (size - 1) // STRIPE * STRIPE
    np.copyto(target[stored:], source[stored:])
    return f"{finalize(lanes.tolist(), size):016x}"


def narrow_with_checksum(target: Bytes, source: NDArray[np.float32]) -> str:
    """Write contiguous float32 [n] as bfloat16, 2 n bytes; return the xxh3-64 of the result, hexadecimal."""
    size = len(target)
    if size <= SHORT_INPUT_BYTES or target.ctypes.data % STRIPE:
        _narrow(source.view(np.uint32), target.view(np.uint16))
        return str(xxhash.xxh3_64_hexdigest(target.data))
    # The last stripe is written first, because it may overlap the stripes that are streamed.
    last = (size - STRIPE) // 2
    _narrow(source.view(np.uint32)[last:], target.view(np.uint16)[last:])
    lanes = init_lanes()
    _narrow_stripes(target.ctypes.data, source.ctypes.data, size, lanes.ctypes.data, _KEYS.ctypes.data)
    return f"{finalize(lanes.tolist(), size):016x}"


_read_stripe = absorb_stripes(copy_op, 1, stores=False, mixes=False)
_copy_block = absorb_stripes(copy_op, _PER_BLOCK, stores=True, mixes=True)
_copy_stripe = absorb_stripes(copy_op, 1, stores=True, mixes=False)
_narrow_block = absorb_stripes(narrow_op, _PER_BLOCK, stores=True, mixes=True)
_narrow_stripe = absorb_stripes(narrow_op, 1, stores=True, mixes=False)
_read_narrowed = absorb_stripes(narrow_op, 1, stores=False, mixes=False)

# Stores all stripes but the last one, which may overlap stored bytes; the lanes accumulate all stripes.
# Arguments are addresses; size is the number of target bytes.


@numba_eager("void(uintp, uintp, uintp, uintp, uintp)")
def _copy_stripes(target: Any, source: Any, size: Any, lanes: Any, keys: Any) -> None:
    blocks = (size - 1) // BLOCK
    for block in range(blocks):
        _copy_block(target + block * BLOCK, source + block * BLOCK, lanes, keys)
    start = blocks * BLOCK
    for stripe in range((size - 1 - start) // STRIPE):
        offset = start + stripe * STRIPE
        _copy_stripe(target + offset, source + offset, lanes, keys + 8 * stripe)
    _read_stripe(source, source + size - STRIPE, lanes, keys + LAST_KEY_OFFSET)
    store_fence()  # type: ignore[call-arg]


@numba_eager("void(uintp, uintp, uintp, uintp, uintp)")
def _narrow_stripes(target: Any, source: Any, size: Any, lanes: Any, keys: Any) -> None:
    blocks = (size - 1) // BLOCK
    for block in range(blocks):
        _narrow_block(target + block * BLOCK, source + 2 * block * BLOCK, lanes, keys)
    start = blocks * BLOCK
    for stripe in range((size - 1 - start) // STRIPE):
        offset = start + stripe * STRIPE
        _narrow_stripe(target + offset, source + 2 * offset, lanes, keys + 8 * stripe)
    _read_narrowed(source, source + 2 * (size - STRIPE), lanes, keys + LAST_KEY_OFFSET)
    store_fence()  # type: ignore[call-arg]


@numba_eager("void(uint32[::1], uint16[::1])")
def _narrow(bits: Any, out: Any) -> None:
    """Convert float32 bits to bfloat16 bits, like `narrow_op`, one element at a time."""
    for index in range(out.size):
        word = bits[index]
        odd = (word >> np.uint32(16)) & np.uint32(1)
        rounded = np.uint32(word + np.uint32(0x7FFF) + odd) >> np.uint32(16)
        is_nan = (word & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
        out[index] = np.uint16(np.uint32(0x7FC0) if is_nan else rounded)
