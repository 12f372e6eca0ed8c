"""Reward penalty of responses near the length limit."""

from torch import Tensor

from kubealign.spec.algorithms import OverlongPenalty
from kubealign_services.batch.auxiliary_sequences import trainable_mask
from kubealign_services.batch.packed import Batch, prompt_lengths
from kubealign_services.batch.samples import LONGEST_RESPONSE


def shape_rewards(batch: Batch, spec: OverlongPenalty | None) -> dict[str, float]:
    """Add the sequence column shaped_rewards, for auxiliary sequences too: rewards less the length penalty.

    Return the mean penalty as a metric; none without a penalty (None).
    """
    rewards, metrics = batch.sequence("rewards"), {}
    if spec is not None:
        penalty = overlong_penalty(batch, spec)
        rewards = rewards - penalty
        metrics["reward/overlong_penalty"] = float(penalty[trainable_mask(batch)].mean())
    batch.sequence_columns["shaped_rewards"] = rewards
    return metrics


def response_lengths(batch: Batch) -> Tensor:
    """Return the tokens of each response as the sampling limit counts them, int64 [S].

    A response begins at the first token with a loss and ends with its sequence; tokens that a tool or an
    environment wrote in between count too. Of a sample with several sequences it is the longest.
    """
    longest = batch.sequence_columns.get(LONGEST_RESPONSE)
    if longest is not None:
        return longest
    return batch.cu_seqlens.long().diff() - prompt_lengths(batch)


def overlong_penalty(batch: Batch, spec: OverlongPenalty) -> Tensor:
    """Return the penalty of each response, [S], in the dtype of the column rewards (Yu et al. 2025, "DAPO",
    eq. 13).

    For a response of n tokens (those of the environment count), a limit of L (scalar max_tokens) and a
    buffer of B:

        0                           n <= L - B
        penalty (n - (L - B)) / B   up to n = L
        penalty                     beyond
    """
    lengths = response_lengths(batch).double()
    buffer_share = (lengths - (batch.scalars["max_tokens"] - spec.buffer_tokens)) / spec.buffer_tokens
    return (spec.penalty * buffer_share.clamp(0, 1)).to(batch.sequence("rewards").dtype)
