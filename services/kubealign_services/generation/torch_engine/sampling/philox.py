"""Counter-based random numbers (Philox) that depend on a sample's seed and token index only."""

import numpy as np
from numpy.typing import NDArray

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_WORD = np.uint64(32)


def philox(counters: NDArray[np.uint64], keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Compute Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3"
    (2011).

    Returns words [4, n]. All arrays are uint64 and hold 32-bit values.

    Args:
        counters: [4, n], the four 32-bit words of the block.
        keys: [2, n], the two words of the key.
    """
    a, b, c, d = counters
    low, high = keys
    for round_number in range(10):
        if round_number:
            low = (low + np.uint64(_WEYL[0])) & _LOW
            high = (high + np.uint64(_WEYL[1])) & _LOW
        first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b, c, d = (second >> _WORD) ^ b ^ low, second & _LOW, (first >> _WORD) ^ d ^ high, first & _LOW
    return np.stack((a, b, c, d))


def uniform_numbers(seeds: NDArray[np.uint64], indices: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return the uniform number in [0, 1) of token `indices` [n] of the sample with seed `seeds` [n], as
    multiples of 2^-52.
    """
    zeros = np.zeros_like(seeds)
    block = philox(
        np.stack((indices & _LOW, indices >> _WORD, zeros, zeros)),
        np.stack((seeds & _LOW, seeds >> _WORD)),
    )
    bits = (block[0] << np.uint64(20)) | (block[1] >> np.uint64(12))
    numbers: NDArray[np.float64] = bits.astype(np.float64) * 2.0**-52
    return numbers
