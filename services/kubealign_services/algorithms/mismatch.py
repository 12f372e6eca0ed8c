"""The gap between what the rollout engine and the trainer say of the same tokens, measured within the step.

Only where the batch has no old_logprobs: with one update the step's own forward pass is the policy that
sampled, so the gap costs nothing there. Elsewhere the driver measures it before the step."""

import torch
from torch import Tensor

from kubealign_services.algorithms.contract import LossTerms
from kubealign_services.algorithms.weights import token_mean_shares
from kubealign_services.batch.companions import is_learned
from kubealign_services.batch.packed import Batch

_SHARES = "gap_shares"


def comparable(batch: Batch) -> Tensor:
    """bool [T]: the response tokens of which engine and trainer should say the same: those that were made
    with the weights that train on them (column weight_version, scalar version; all where either is missing),
    companions left out. Where the scalar continued is set, whole responses alone: in one that older weights
    began, the later tokens stand on keys and values that no one set of weights gives."""
    mask = batch.token("loss_mask").bool() & is_learned(batch)[batch.sequence_of_token]
    if "version" in batch.scalars and "weight_version" in batch.token_columns:
        older = mask & (batch.token("weight_version") != int(batch.scalars["version"]))
        mask = mask & ~older
        if batch.scalars.get("continued"):
            begun = torch.zeros(len(batch), dtype=torch.bool, device=mask.device)
            begun[batch.sequence_of_token[older]] = True
            mask = mask & ~begun[batch.sequence_of_token]
    return mask


def prepare_gap(minibatch: Batch) -> None:
    """Add each response token's share of the mean gap, where the gap is to be measured and can be."""
    if "engine_logprobs" in minibatch.token_columns and "old_logprobs" not in minibatch.token_columns:
        mask = comparable(minibatch)
        if bool(mask.any()):
            minibatch.token_columns[_SHARES] = token_mean_shares(mask)


def add_gap(terms: LossTerms, logprobs: Tensor, microbatch: Batch) -> LossTerms:
    """Add rollout/logprob_gap_mean and rollout/logprob_gap_max, in nats, where the gap is to be measured.

    logprobs: [T]."""
    if _SHARES not in microbatch.token_columns:
        return terms
    shares = microbatch.token(_SHARES)
    mask = shares > 0
    engine = microbatch.token("engine_logprobs")[mask].to(logprobs)
    gap = (logprobs.detach()[mask.to(logprobs.device)] - engine).abs()
    terms.sums["rollout/logprob_gap_mean"] = (gap * shares[mask].to(gap)).sum()
    terms.maxima["rollout/logprob_gap_max"] = gap.max() if len(gap) else gap.sum()
    return terms
