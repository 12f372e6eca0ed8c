"""Reward penalty for responses near the length limit."""

from torch import Tensor

from kubealign.spec.algorithms import OverlongPenalty
from kubealign_services.batch.packed import Batch, sequence_sums


def overlong_penalty(batch: Batch, spec: OverlongPenalty) -> Tensor:
    """Return the penalty of each response, [S], in the dtype of the column rewards (Yu et al. 2025, "DAPO",
    eq. 13).

    For a response of n tokens, a limit of L (scalar max_tokens) and a buffer of B:

        0                           n <= L - B
        penalty (n - (L - B)) / B   up to n = L
        penalty                     beyond
    """
    lengths = sequence_sums(batch.token("loss_mask").bool().double(), batch)
    buffer_share = (lengths - (batch.scalars["max_tokens"] - spec.buffer_tokens)) / spec.buffer_tokens
    return (spec.penalty * buffer_share.clamp(0, 1)).to(batch.sequence("rewards").dtype)
