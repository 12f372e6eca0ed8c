"""How the tokens' losses become one number."""

from torch import Tensor

from kubealign.spec.algorithms import LossAggregation
from kubealign_services.algorithms.weights import token_mean_shares
from kubealign_services.batch.packed import Batch, sequence_sums


def counted_tokens(batch: Batch, mask_truncated: bool) -> Tensor:
    """bool [T]: the response tokens that are learned; with mask_truncated not those of responses that did
    not end (column truncated)."""
    mask = batch.token("loss_mask").bool()
    if mask_truncated:
        mask = mask & (batch.sequence("truncated") == 0)[batch.sequence_of_token]
    return mask


def aggregation_shares(batch: Batch, counted: Tensor, aggregation: LossAggregation) -> Tensor:
    """float64 [T]: what each token's loss is multiplied with in the sum over a minibatch of S responses with
    n_i tokens, 0 where nothing counts.

        SequenceMean    1 / (S n_i)
        TokenMean       1 / (sum of n_i)
        SequenceSum     1 / S
        FixedLength     1 / (S max_tokens)

    counted: bool [T]; responses and tokens are counted by it, so S leaves out a response without any. Raises
    KeyError where FixedLength finds no scalar max_tokens."""
    if aggregation is LossAggregation.TOKEN_MEAN:
        return token_mean_shares(counted)
    chosen = counted.double()
    lengths = sequence_sums(chosen, batch)
    shares = chosen / (lengths > 0).sum().clamp(min=1)
    if aggregation is LossAggregation.SEQUENCE_MEAN:
        return shares / lengths.clamp(min=1)[batch.sequence_of_token]
    if aggregation is LossAggregation.FIXED_LENGTH:
        return shares / batch.scalars["max_tokens"]
    return shares
