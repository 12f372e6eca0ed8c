"""Aggregation of token losses into one scalar."""

from torch import Tensor

from kubealign.spec.algorithms import LossAggregation
from kubealign_services.algorithms.losses.loss_weights import token_mean_shares
from kubealign_services.batch.packed import Batch, sequence_sums


def loss_token_mask(batch: Batch, mask_truncated: bool) -> Tensor:
    """Return the mask of response tokens that are trained on, bool [T].

    With mask_truncated, responses that did not end (column truncated) are left out.
    """
    mask = batch.token("loss_mask").bool()
    if mask_truncated:
        mask = mask & (batch.sequence("truncated") == 0)[batch.sequence_of_token]
    return mask


def aggregation_shares(batch: Batch, counted: Tensor, aggregation: LossAggregation) -> Tensor:
    """Return the weight of each token's loss in the sum over a minibatch, float64 [T], 0 for tokens left out.

    For S responses with n_i tokens:

        SequenceMean    1 / (S n_i)
        TokenMean       1 / (sum of n_i)
        SequenceSum     1 / S
        FixedLength     1 / (S max_tokens)

    Args:
        counted: bool [T]; responses and tokens are counted by this mask, so S leaves out a response
            without any.

    Raises KeyError where FixedLength finds no scalar max_tokens.
    """
    if aggregation is LossAggregation.TOKEN_MEAN:
        return token_mean_shares(counted)
    weights = counted.double()
    lengths = sequence_sums(weights, batch)
    shares = weights / (lengths > 0).sum().clamp(min=1)
    if aggregation is LossAggregation.SEQUENCE_MEAN:
        return shares / lengths.clamp(min=1)[batch.sequence_of_token]
    if aggregation is LossAggregation.FIXED_LENGTH:
        return shares / batch.scalars["max_tokens"]
    return shares
