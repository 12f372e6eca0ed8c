"""4-bit NormalFloat, weight by weight, after Dettmers et al. 2023 (QLoRA), section 3 and appendix E."""

from statistics import NormalDist

import torch
from torch import Tensor

BLOCK = 64


def nf4_levels() -> list[float]:
    """Return the 16 levels: quantiles of a normal distribution, eight below zero and seven above, each half
    scaled to 1, and zero itself.
    """
    # The outermost quantile, between those of 15 and of 16 levels.
    last = (1 - 1 / 32 + 1 - 1 / 30) / 2
    quantile = NormalDist().inv_cdf
    positive = [quantile(0.5 + (last - 0.5) * step / 8) for step in range(1, 9)]
    negative = [-quantile(0.5 + (last - 0.5) * step / 7) for step in range(1, 8)]
    return sorted(level / positive[-1] for level in [*negative, 0.0, *positive])


def round_to_nf4(weight: Tensor, double: bool = False, code: Tensor | None = None) -> Tensor:
    """Return the weight with every element replaced by the nearest level times its block's scale, in fp32.

    Args:
        weight: [outputs, inputs], whose inputs are a multiple of the block size.
        double: Quantise the scales too, in blocks of 256.
        code: The values of the 8-bit scales, in [-1, 1].
    """
    levels = nf4_levels()
    blocks = weight.float().reshape(-1, BLOCK).tolist()
    scales = [max(abs(value) for value in block) for block in blocks]
    stored = _round_scales(scales, code) if double and code is not None else scales
    rows = []
    for block, scale, rounded in zip(blocks, scales, stored, strict=True):
        ratios = [value / scale if scale else 0.0 for value in block]
        rows.append([min(levels, key=lambda level: abs(level - r)) * rounded for r in ratios])
    return torch.tensor(rows, dtype=torch.float32).reshape(weight.shape)


def _round_scales(scales: list[float], code: Tensor) -> list[float]:
    """Return the scales as double quantisation stores them."""
    mean = sum(scales) / len(scales)
    values, result = code.tolist(), []
    for start in range(0, len(scales), 256):
        centred = [scale - mean for scale in scales[start : start + 256]]
        largest = max(abs(each) for each in centred)
        for each in centred:
            ratio = each / largest if largest else 0.0
            result.append(min(values, key=lambda value: abs(value - ratio)) * largest + mean)
    return result
