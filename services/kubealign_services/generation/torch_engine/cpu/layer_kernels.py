"""CPU kernels for the small operations of a decoder layer, each in one pass over its numbers."""

from typing import Any

import numpy as np

from kubealign_services.generation.torch_engine.cpu.bfloat16_conversion import narrow, widen
from kubealign_services.runtime.numba_kernels import numba_eager, numba_lazy


@numba_eager(
    "void(float32[:, ::1], int64[::1], float32[:, ::1])", "void(uint16[:, ::1], int64[::1], uint16[:, ::1])"
)
def write_rows(states: Any, rows: Any, cache: Any) -> None:
    """Write states [T, columns] into the rows `rows` int64 [T] of cache [rows, columns]."""
    for token in range(len(states)):
        cache[rows[token]] = states[token]


@numba_lazy
def rms_norm(states: Any, weight: Any, epsilon: Any, out: Any) -> None:
    """Compute out = states / sqrt(mean(states^2) + epsilon) * weight, over the columns of [T, columns] (Zhang
    and Sennrich, "Root mean square layer normalization", 2019).
    """
    tokens, columns = states.shape
    for token in range(tokens):
        squares = np.float32(0)
        for c in range(columns):
            squares += widen(states[token, c]) * widen(states[token, c])
        scale = np.float32(1 / np.sqrt(squares / np.float32(columns) + epsilon))
        for c in range(columns):
            out[token, c] = narrow(widen(states[token, c]) * scale * widen(weight[c]), out[token, c])


@numba_lazy
def apply_rotary(
    projected: Any, column: Any, norm: Any, epsilon: Any, positions: Any, cosines: Any, sines: Any, out: Any
) -> None:
    """Rotate the heads that begin at column `column` of projected [T, columns] by their positions, into out
    [T, heads, width]: rotary embeddings (Su et al., "RoFormer", 2021), with the first half of a head's
    numbers paired with the second, as in GPT-NeoX.

    cosines, sines: float32 [positions, width / 2]. norm [width]: the weight of `rms_norm`, which is
    applied to each head first; empty [0] for none.
    """
    tokens, heads, width = out.shape
    half = width // 2
    scale = np.float32(1)
    for token in range(tokens):
        at = positions[token]
        for h in range(heads):
            start = column + h * width
            if len(norm):
                squares = np.float32(0)
                for d in range(width):
                    squares += widen(projected[token, start + d]) * widen(projected[token, start + d])
                scale = np.float32(1 / np.sqrt(squares / np.float32(width) + epsilon))
            for d in range(half):
                left, right = widen(projected[token, start + d]), widen(projected[token, start + half + d])
                if len(norm):
                    left *= scale * widen(norm[d])
                    right *= scale * widen(norm[half + d])
                cosine, sine = cosines[at, d], sines[at, d]
                out[token, h, d] = narrow(left * cosine - right * sine, out[token, h, d])
                out[token, h, half + d] = narrow(right * cosine + left * sine, out[token, h, half + d])
