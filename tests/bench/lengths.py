"""Response lengths with a long tail: the same on every side, from the seed alone. Pure."""

import random
from collections.abc import Sequence

#: Spread of the logarithms: with 1, one in forty draws is seven times the median.
_SIGMA = 1.0


def tailed(step: int, samples: int, mean: int, longest: int, seed: int) -> list[int]:
    """The lengths of a step's samples, in their order, in tokens: log-normal draws, each of (seed, step,
    sample) alone, whose largest is made `longest` and whose others are scaled so that all together have
    exactly `mean` on average.

    Raises ValueError where no such lengths of at least one token exist."""
    total = mean * samples
    if not longest + samples - 1 <= total <= longest * samples:
        raise ValueError(f"{samples} lengths of 1 to {longest}, one of them {longest}: no mean of {mean}")
    drawn = [
        random.Random(f"{seed}:{step}:{sample}").lognormvariate(0.0, _SIGMA) for sample in range(samples)
    ]
    top = max(range(samples), key=drawn.__getitem__)
    others = [place for place in range(samples) if place != top]
    scaled = _scaled([drawn[place] for place in others], total - longest, longest)
    lengths = dict(zip(others, scaled, strict=True)) | {top: longest}
    return [lengths[place] for place in range(samples)]


def _scaled(drawn: Sequence[float], total: int, longest: int) -> list[int]:
    """Whole numbers from 1 to `longest`, in proportion to what was drawn, with this sum."""

    def at(scale: float) -> list[int]:
        return [min(longest, max(1, int(scale * each))) for each in drawn]

    low, high = 0.0, total / min(drawn, default=1.0) + 1.0
    while sum(at(high)) < total:
        high *= 2.0
    for _ in range(100):
        middle = (low + high) / 2.0
        low, high = (middle, high) if sum(at(middle)) <= total else (low, middle)
    found = at(low)
    missing = total - sum(found)
    # What rounding down has taken, one token each, from the first on.
    for place in range(len(found)):
        if missing and found[place] < longest:
            found[place] += 1
            missing -= 1
    return found
