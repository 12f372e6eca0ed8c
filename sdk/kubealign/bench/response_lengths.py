"""Distribution of the response lengths of a step."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

#: Default standard deviation of the logarithm of a length: with a mean of 64 one response in two hundred is
#: longer than 512.
SPREAD = 1.0
_NORMAL = NormalDist()
#: Larger than any deviation of a log length within the distribution.
_MAX_LOG_DEVIATION = 20.0
_BISECTIONS = 60


@dataclass(frozen=True)
class ResponseLengths:
    """A log-normal distribution, truncated at `longest`.

    mean: tokens, of the truncated lengths. spread: standard deviation of the logarithm; 0: all responses
    have the mean length. Raises ValueError for a mean below 1 or above `longest`.
    """

    mean: float
    longest: int
    spread: float = SPREAD

    def __post_init__(self) -> None:
        if not 1 <= self.mean <= self.longest:
            raise ValueError(
                f"a mean length of {self.mean:g} tokens: it may be 1 to the longest, {self.longest}"
            )
        if self.spread < 0:
            raise ValueError(f"a spread of {self.spread:g}: it is at least 0")

    def quantiles(self, count: int) -> list[int]:
        """Return the lengths of `count` responses, ascending.

        Midpoints of as many equally likely parts of the distribution, so that the same step always has the
        same lengths.
        """
        quantiles = [_NORMAL.inv_cdf((i + 0.5) / count) for i in range(count)]
        low, high = -_MAX_LOG_DEVIATION, math.log(self.longest) + _MAX_LOG_DEVIATION
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            if sum(self._length(middle + self.spread * z) for z in quantiles) < self.mean * count:
                low = middle
            else:
                high = middle
        return [max(1, round(self._length(high + self.spread * z))) for z in quantiles]

    def _length(self, logarithm: float) -> float:
        return min(float(self.longest), max(1.0, math.exp(min(logarithm, 2 * _MAX_LOG_DEVIATION))))


def fit_lengths(
    means: Sequence[float], largest: Sequence[float], count: int, longest: int
) -> ResponseLengths:
    """Fit the distribution to each step's mean and largest length, with `count` responses per step.

    Of n log-normal lengths the largest is near the quantile n / (n + 1), z deviations above the median:
    ln(largest / mean) = spread * z - spread^2 / 2, of which the smaller root is taken; z where there is
    none.
    """
    mean = sum(means) / len(means)
    ratio = math.log(max(1.0, sum(largest) / len(largest) / mean))
    z = max(0.0, _NORMAL.inv_cdf(count / (count + 1)))
    root = z * z - 2 * ratio
    spread = z - math.sqrt(root) if root >= 0 else z
    return ResponseLengths(min(max(mean, 1.0), float(longest)), longest, spread)
