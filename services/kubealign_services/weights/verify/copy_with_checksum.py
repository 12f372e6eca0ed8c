"""Copies or narrows bytes and computes their xxh3-64: a copy in one pass, by kernels of its own.

Receivers verify with the library, because reading alone is not faster with these kernels. Narrowing uses the
library too, a chunk at a time: one pass was only a sixth faster (`python -m tests.bench refit-checksum`
measures the copy).
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
    finalize,
    init_lanes,
    store_fence,
)

Bytes = NDArray[np.uint8]

_KEYS = np.frombuffer(SECRET, np.uint8)
_PER_BLOCK = BLOCK // STRIPE
# A chunk that stays in the second-level cache until its checksum is computed.
_NARROWED_ELEMENTS = 1 << 17


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
    bits, narrowed = source.view(np.uint32), target.view(np.uint16)
    checksum = xxhash.xxh3_64()
    for start in range(0, len(narrowed), _NARROWED_ELEMENTS):
        chunk = narrowed[start : start + _NARROWED_ELEMENTS]
        _narrow(bits[start : start + _NARROWED_ELEMENTS], chunk)
        checksum.update(chunk.data)
    return str(checksum.hexdigest())


_read_stripe = absorb_stripes(1, stores=False, mixes=False)
_copy_block = absorb_stripes(_PER_BLOCK, stores=True, mixes=True)
_copy_stripe = absorb_stripes(1, stores=True, mixes=False)

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


@numba_eager("void(uint32[::1], uint16[::1])")
def _narrow(bits: Any, out: Any) -> None:
    """Convert float32 bits to bfloat16 bits: rounded to nearest, ties to even; NaN stays NaN."""
    for index in range(out.size):
        word = bits[index]
        odd = (word >> np.uint32(16)) & np.uint32(1)
        rounded = np.uint32(word + np.uint32(0x7FFF) + odd) >> np.uint32(16)
        is_nan = (word & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
        out[index] = np.uint16(np.uint32(0x7FC0) if is_nan else rounded)
