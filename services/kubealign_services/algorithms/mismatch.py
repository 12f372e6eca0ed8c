"""The gap between what the rollout engine and the trainer say of the same tokens, measured within the step.

Only where the batch has no old_logprobs: with one update the step's own forward pass is the policy that
sampled, so the gap costs nothing there. Elsewhere the driver measures it before the step."""

from torch import Tensor

from kubealign_services.algorithms.contract import LossTerms
from kubealign_services.algorithms.weights import token_mean_shares
from kubealign_services.batch.packed import Batch

_SHARES = "gap_shares"


def prepare_gap(minibatch: Batch) -> None:
    """Add each response token's share of the mean gap, where the gap is to be measured."""
    if "engine_logprobs" in minibatch.token_columns and "old_logprobs" not in minibatch.token_columns:
        minibatch.token_columns[_SHARES] = token_mean_shares(minibatch.token("loss_mask"))


def add_gap(terms: LossTerms, logprobs: Tensor, microbatch: Batch) -> LossTerms:
    """Add rollout/logprob_gap_mean and rollout/logprob_gap_max, in nats, where the gap is to be measured.

    logprobs: [T]."""
    if _SHARES not in microbatch.token_columns:
        return terms
    mask = microbatch.token("loss_mask").to(logprobs.device) != 0
    gap = (logprobs.detach() - microbatch.token("engine_logprobs").to(logprobs)).abs()[mask]
    terms.sums["rollout/logprob_gap_mean"] = (
        gap * microbatch.token(_SHARES).to(logprobs.device, gap.dtype)[mask]
    ).sum()
    terms.maxima["rollout/logprob_gap_max"] = gap.max() if len(gap) else gap.sum()
    return terms
