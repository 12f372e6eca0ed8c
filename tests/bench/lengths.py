"""Long-tailed response lengths that depend on the seed only, so that all sides use the same. Pure
functions."""

import random
from collections.abc import Sequence

#: Standard deviation of the logarithms: with 1, one in forty draws is seven times the median.
_SIGMA = 1.0


def tailed(step: int, samples: int, mean: int, longest: int, seed: int) -> list[int]:
    """Return the lengths of a step's samples in tokens: log-normal draws, each seeded by (seed, step,
    sample). The largest draw becomes `longest`; the others are scaled so that the mean of all is exactly
    `mean`.

    Raises ValueError if no such lengths of at least one token exist."""
    total = mean * samples
    if not longest + samples - 1 <= total <= longest * samples:
        raise ValueError(f"{samples} lengths of 1 to {longest}, one of them {longest}: no mean of {mean}")
    drawn = [
        random.Random(f"{seed}:{step}:{sample}").lognormvariate(0.0, _SIGMA) for sample in range(samples)
    ]
    top = max(range(samples), key=drawn.__getitem__)
    others = [index for index in range(samples) if index != top]
    scaled = _scaled([drawn[index] for index in others], total - longest, longest)
    lengths = dict(zip(others, scaled, strict=True)) | {top: longest}
    return [lengths[index] for index in range(samples)]


def _scaled(drawn: Sequence[float], total: int, longest: int) -> list[int]:
    """Return integers from 1 to `longest`, proportional to the draws, with this sum."""

    def at(scale: float) -> list[int]:
        return [min(longest, max(1, int(scale * each))) for each in drawn]

    low, high = 0.0, total / min(drawn, default=1.0) + 1.0
    while sum(at(high)) < total:
        high *= 2.0
    for _ in range(100):
        middle = (low + high) / 2.0
        low, high = (middle, high) if sum(at(middle)) <= total else (low, middle)
    lengths = at(low)
    missing = total - sum(lengths)
    # Distribute the remainder of rounding down, one token each, from the first on.
    for index in range(len(lengths)):
        if missing and lengths[index] < longest:
            lengths[index] += 1
            missing -= 1
    return lengths
