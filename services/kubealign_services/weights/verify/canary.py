"""Canary: a fixed token sequence whose log-probabilities prove that a receiver has loaded the weights
correctly.
"""

import math
from collections.abc import Sequence
from typing import Self

import xxhash

from kubealign.spec.sections.precision import Precision
from kubealign.v1 import refit_pb2

#: Nats on average. The rounding of two correct implementations, measured on SmolLM2-135M with twenty canaries
#: of 64 tokens on a CPU with bf16 instructions: in bf16 at most 0.17, while two layers that are swapped give
#: at least 0.50. Of 16 tokens, whose mean depends on a few of them, at most 0.32 and at least 0.39; on a
#: single token 0.72 was seen, so the largest difference tells little. fp16 has three bits more.
TOLERANCES = {Precision.FLOAT32: 1e-3, Precision.BFLOAT16: 0.4, Precision.FLOAT16: 0.05}
#: External engines multiply in TF32 where the job says fp32, which has as many bits as fp16: vLLM's attention
#: kernel for fp32 on an H200.
EXTERNAL_TOLERANCES = TOLERANCES | {Precision.FLOAT32: TOLERANCES[Precision.FLOAT16]}


_LEAST_LENGTH, _MOST_LENGTH = 16, 64


def canary_length(context: int | None) -> int:
    """Return the tokens of a canary: 64, or fewer for a model with a short context, a multiple of 16.

    Args:
        context: Context of the model in tokens, half of which leaves room in every engine; None: unlimited.
    """
    most = _MOST_LENGTH if context is None else min(_MOST_LENGTH, context // 2)
    return max(_LEAST_LENGTH, most // _LEAST_LENGTH * _LEAST_LENGTH)


class Canary:
    """Canary of one job. tokens: ids below the vocabulary size. tolerance: nats, of the mean
    difference.
    """

    def __init__(self, tokens: Sequence[int], tolerance: float) -> None:
        self.tokens = list(tokens)
        self.tolerance = tolerance

    @classmethod
    def choose(
        cls,
        seed: int,
        vocabulary: int,
        precisions: Sequence[Precision],
        length: int = _LEAST_LENGTH,
        *,
        external_engine: bool = False,
    ) -> Self:
        """Return the job's canary: the same for the same seed, vocabulary size and length.

        Args:
            precisions: Arithmetic of the sender and the receivers; the largest of their tolerances
                applies.
            external_engine: The receivers run an engine that is not kubealign's own.

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
        tolerances = EXTERNAL_TOLERANCES if external_engine else TOLERANCES
        return cls(tokens, max(tolerances[precision] for precision in precisions))

    def to_proto(self, logprobs: Sequence[float]) -> refit_pb2.Canary:
        """Return the canary for an announcement.

        Args:
            logprobs: Log-probability of each token after the first, one fewer than tokens.
        """
        if len(logprobs) != len(self.tokens) - 1:
            raise ValueError(f"{len(logprobs)} log-probabilities for {len(self.tokens)} canary tokens")
        return refit_pb2.Canary(tokens=self.tokens, logprobs=logprobs, tolerance=self.tolerance)


def mean_logprob_gap(sender: Sequence[float], receiver: Sequence[float]) -> float:
    """Return the mean absolute difference in nats; infinite when a value is not finite or missing."""
    if len(sender) != len(receiver):
        return math.inf
    differences = [abs(a - b) for a, b in zip(sender, receiver, strict=True)]
    gap = sum(differences) / len(differences) if differences else 0.0
    return gap if math.isfinite(gap) else math.inf
