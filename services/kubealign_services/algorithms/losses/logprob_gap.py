"""Log-probability gap between rollout engine and trainer on the same tokens, measured within the step.

Only where the batch has no old_logprobs: with one update the step's own forward pass is the policy that
sampled, so measuring costs nothing extra. Elsewhere the driver measures the gap before the step.
"""

import torch
from torch import Tensor

from kubealign_services.algorithms.contract import LossTerms
from kubealign_services.algorithms.losses.loss_weights import token_mean_shares
from kubealign_services.batch.auxiliary_sequences import trainable_mask
from kubealign_services.batch.packed import Batch

_SHARES = "gap_shares"


def comparable_tokens(batch: Batch) -> Tensor:
    """Return the mask of response tokens on which engine and trainer should agree, bool [T].

    These are the tokens generated with the weights that train on them (column weight_version, scalar
    version; all where either is missing), auxiliary sequences left out. Where the scalar continued is set,
    only complete responses of one weight version count: later tokens of a response begun by older weights
    depend on keys and values that no single set of weights produces.
    """
    mask = batch.token("loss_mask").bool() & trainable_mask(batch)[batch.sequence_of_token]
    if "version" in batch.scalars and "weight_version" in batch.token_columns:
        older = mask & (batch.token("weight_version") != int(batch.scalars["version"]))
        mask = mask & ~older
        if batch.scalars.get("continued"):
            is_mixed = torch.zeros(len(batch), dtype=torch.bool, device=mask.device)
            is_mixed[batch.sequence_of_token[older]] = True
            mask = mask & ~is_mixed[batch.sequence_of_token]
    return mask


def add_gap_columns(minibatch: Batch) -> None:
    """Add each response token's share of the mean gap, where the gap is to be measured."""
    if "engine_logprobs" in minibatch.token_columns and "old_logprobs" not in minibatch.token_columns:
        mask = comparable_tokens(minibatch)
        if bool(mask.any()):
            minibatch.token_columns[_SHARES] = token_mean_shares(mask)


def add_gap_metrics(terms: LossTerms, logprobs: Tensor, microbatch: Batch) -> LossTerms:
    """Add rollout/logprob_gap_mean and rollout/logprob_gap_max, in nats, where the gap is to be measured.

    Args:
        logprobs: [T].
    """
    if _SHARES not in microbatch.token_columns:
        return terms
    shares = microbatch.token(_SHARES)
    mask = shares > 0
    engine = microbatch.token("engine_logprobs")[mask].to(logprobs)
    gap = (logprobs.detach()[mask.to(logprobs.device)] - engine).abs()
    terms.sums["rollout/logprob_gap_mean"] = (gap * shares[mask].to(gap)).sum()
    terms.maxima["rollout/logprob_gap_max"] = gap.max() if len(gap) else gap.sum()
    return terms
