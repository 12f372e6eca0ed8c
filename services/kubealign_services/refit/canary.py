"""The canary: a fixed sequence whose log-probabilities prove that a receiver has the weights it was sent."""

import math
from collections.abc import Sequence
from typing import Self

import xxhash

from kubealign.spec.precision import Precision
from kubealign.v1 import refit_pb2

#: Nats. In bf16 two right implementations differ by up to some hundredths on one token.
TOLERANCES = {Precision.FLOAT32: 1e-3, Precision.BFLOAT16: 0.1}


class Canary:
    """One job's canary. tokens: ids below the vocabulary's size. tolerance: nats."""

    def __init__(self, tokens: Sequence[int], tolerance: float) -> None:
        self.tokens = list(tokens)
        self.tolerance = tolerance

    @classmethod
    def choose(cls, seed: int, vocabulary: int, precisions: Sequence[Precision], length: int = 16) -> Self:
        """The job's sequence: the same for the same seed, vocabulary size and length.

        precisions: of the sender's and the receivers' arithmetic; the widest of their tolerances holds.
        Raises ValueError for a vocabulary or a length without which there is nothing to compare.
        """
        if vocabulary < 1 or length < 2:
            raise ValueError(
                f"a canary needs a token and a length of 2, not {vocabulary} tokens and length {length}"
            )
        tokens = [
            xxhash.xxh3_64_intdigest(f"canary:{seed}:{place}".encode()) % vocabulary
            for place in range(length)
        ]
        return cls(tokens, max(TOLERANCES[precision] for precision in precisions))

    def message(self, logprobs: Sequence[float]) -> refit_pb2.Canary:
        """What the sender announces. logprobs: of each token after the first, one fewer than tokens."""
        if len(logprobs) != len(self.tokens) - 1:
            raise ValueError(f"{len(logprobs)} log-probabilities for {len(self.tokens)} canary tokens")
        return refit_pb2.Canary(tokens=self.tokens, logprobs=logprobs, tolerance=self.tolerance)


def gap(sender: Sequence[float], receiver: Sequence[float]) -> float:
    """Largest absolute difference, in nats; infinite where a value is not finite or is missing."""
    if len(sender) != len(receiver):
        return math.inf
    differences = [abs(a - b) for a, b in zip(sender, receiver, strict=True)]
    return max((d if math.isfinite(d) else math.inf for d in differences), default=0.0)
