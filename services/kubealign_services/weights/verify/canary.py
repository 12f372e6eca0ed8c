"""Canary: a fixed token sequence whose log-probabilities prove that a receiver has loaded the weights
correctly.
"""

import math
from collections.abc import Sequence
from typing import Self

import xxhash

from kubealign.spec.sections.precision import Precision
from kubealign.v1 import refit_pb2

#: Nats. In bf16 two correct implementations differ by up to a few hundredths on one token; fp16 has three
#: bits more.
TOLERANCES = {Precision.FLOAT32: 1e-3, Precision.BFLOAT16: 0.1, Precision.FLOAT16: 0.03}


class Canary:
    """Canary of one job. tokens: ids below the vocabulary size. tolerance: nats."""

    def __init__(self, tokens: Sequence[int], tolerance: float) -> None:
        self.tokens = list(tokens)
        self.tolerance = tolerance

    @classmethod
    def choose(cls, seed: int, vocabulary: int, precisions: Sequence[Precision], length: int = 16) -> Self:
        """Return the job's canary: the same for the same seed, vocabulary size and length.

        Args:
            precisions: Arithmetic of the sender and the receivers; the largest of their tolerances
                applies.

        Raises:
            ValueError: The vocabulary or the length leaves nothing to compare.
        """
        if vocabulary < 1 or length < 2:
            raise ValueError(
                f"a canary needs a token and a length of 2, not {vocabulary} tokens and length {length}"
            )
        tokens = [
            xxhash.xxh3_64_intdigest(f"canary:{seed}:{index}".encode()) % vocabulary
            for index in range(length)
        ]
        return cls(tokens, max(TOLERANCES[precision] for precision in precisions))

    def to_proto(self, logprobs: Sequence[float]) -> refit_pb2.Canary:
        """Return the canary for an announcement.

        Args:
            logprobs: Log-probability of each token after the first, one fewer than tokens.
        """
        if len(logprobs) != len(self.tokens) - 1:
            raise ValueError(f"{len(logprobs)} log-probabilities for {len(self.tokens)} canary tokens")
        return refit_pb2.Canary(tokens=self.tokens, logprobs=logprobs, tolerance=self.tolerance)


def max_logprob_gap(sender: Sequence[float], receiver: Sequence[float]) -> float:
    """Return the largest absolute difference in nats; infinite when a value is not finite or missing."""
    if len(sender) != len(receiver):
        return math.inf
    differences = [abs(a - b) for a, b in zip(sender, receiver, strict=True)]
    return max((d if math.isfinite(d) else math.inf for d in differences), default=0.0)
