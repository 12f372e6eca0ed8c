"""CPU kernel that samples a token for each row without storing the distribution."""

import math
from typing import Any

import numpy as np

from kubealign_services.generation.torch_engine.cpu.bfloat16_conversion import exponential
from kubealign_services.runtime.numba_kernels import numba_lazy

# Tokens whose weights are summed in float32; the sums of blocks are in float64.
_BLOCK = 64
# Numbers compared in parallel; divides a block.
_LANES = 16
# Tokens below e^-87 of the likeliest are never sampled: a uniform number of 52 bits cannot resolve them.
_MIN_EXPONENT = np.float32(-87.0)


@numba_lazy
def _apply_temperature(logits: Any, heat: Any, out: Any) -> None:
    for j in range(len(logits)):
        out[j] = logits[j] / heat
    out[len(logits) :] = -np.inf


@numba_lazy
def _largest(numbers: Any) -> Any:
    """Return the largest number, ignoring NaN, which the total contains."""
    lanes = np.full(_LANES, -np.inf, np.float32)
    for start in range(0, len(numbers), _LANES):
        for lane in range(_LANES):
            if numbers[start + lane] > lanes[lane]:
                lanes[lane] = numbers[start + lane]
    most = lanes[0]
    for lane in range(1, _LANES):
        if lanes[lane] > most:
            most = lanes[lane]
    return most


@numba_lazy
def _exponentiate(numbers: Any, most: Any, sums: Any) -> Any:
    """Replace numbers by e^(number - most), and write the sums of its blocks. Return the total, float64."""
    total: Any = 0.0
    for block in range(len(sums)):
        part = np.float32(0)
        for j in range(_BLOCK):
            x = numbers[block * _BLOCK + j] - most
            weight = np.float32(0) if x < _MIN_EXPONENT else exponential(x)
            numbers[block * _BLOCK + j] = weight
            part += weight
        sums[block] = part
        total += part
    return total


@numba_lazy
def _search_token(weights: Any, sums: Any, threshold: Any) -> Any:
    """Return the first token whose cumulative weight exceeds the threshold, which is below the total."""
    below = 0.0
    block = 0
    for each in range(len(sums)):
        if sums[each] > 0:
            block = each
            if below + sums[each] > threshold:
                break
            below += sums[each]
    token = block * _BLOCK
    for j in range(block * _BLOCK, (block + 1) * _BLOCK):
        if weights[j] > 0:
            # Summed in another order the block's sum may be larger by rounding: its last token is taken then.
            token = j
            below += weights[j]
            if below > threshold:
                break
    return token


@numba_lazy
def draw_tokens(
    logits: Any,
    temperature: Any,
    uniform: Any,
    starts: Any,
    forbidden: Any,
    tokens: Any,
    behaviour: Any,
    engine: Any,
    first: Any,
    last: Any,
) -> None:
    """Sample rows `first` to `last` - 1 of logits float32 [n, vocabulary], as `sampler.sample` defines,
    without truncation.

    forbidden: int64, the tokens of row i at starts[i] to starts[i + 1]; starts int64 [n + 1]. Results are
    written to tokens int64 [n], behaviour and engine float32 [n].

    The vocabulary is divided into blocks: their sums locate the block that contains the row's uniform
    number, and only that block is searched for the token.
    """
    vocabulary = logits.shape[1]
    # Padding beyond the vocabulary has no weight: complete blocks allow straight vector code.
    weights = np.full((vocabulary + _BLOCK - 1) // _BLOCK * _BLOCK, -np.inf, np.float32)
    sums = np.empty(len(weights) // _BLOCK, np.float32)
    for row in range(first, last):
        greedy = temperature[row] == 0
        heat = np.float32(1) if greedy else temperature[row]
        _apply_temperature(logits[row], heat, weights)
        for f in range(starts[row], starts[row + 1]):
            weights[forbidden[f]] = -np.inf
        most = _largest(weights)
        total = _exponentiate(weights, most, sums)
        token = 0
        if greedy:
            for j in range(vocabulary):
                if logits[row, j] == most and weights[j] > 0:
                    token = j
                    break
        else:
            token = _search_token(weights, sums, uniform[row] * total)
        tokens[row] = token
        # The full distribution has these weights and those of the forbidden tokens.
        chosen = np.float64(logits[row, token] / heat)
        highest = np.float64(most)
        for f in range(starts[row], starts[row + 1]):
            highest = max(highest, np.float64(logits[row, forbidden[f]] / heat))
        full = total * math.exp(np.float64(most) - highest)
        for f in range(starts[row], starts[row + 1]):
            full += math.exp(np.float64(logits[row, forbidden[f]] / heat) - highest)
        engine[row] = chosen - highest - math.log(full)
        behaviour[row] = chosen - np.float64(most) - math.log(total)
        if greedy:
            behaviour[row] *= 0
