"""Divergence from the reference, measured within the step.

Only where the KL penalty is part of the loss and the batch has no old_logprobs: with one update the step's
own forward pass is the policy that sampled, so a pass before the step would compute the same again.
Elsewhere `ReferenceKL` measures the divergence before the step.
"""

from torch import Tensor

from kubealign.spec.algorithms import KL, KLPlacement
from kubealign_services.algorithms.contract import LossTerms
from kubealign_services.algorithms.losses.kl import estimate_kl
from kubealign_services.algorithms.losses.loss_weights import token_mean_shares
from kubealign_services.batch.packed import Batch

_KL_SHARES, _TOKENS_PER_RESPONSE = "kl_shares", "kl_tokens_a_response"


def add_kl_columns(minibatch: Batch, spec: KL) -> None:
    """Add each response token's share of the mean divergence, where the step has to measure it."""
    in_step = spec.active and spec.placement is KLPlacement.LOSS
    if in_step and "old_logprobs" not in minibatch.token_columns:
        mask = minibatch.token("loss_mask")
        minibatch.token_columns[_KL_SHARES] = token_mean_shares(mask)
        minibatch.scalars[_TOKENS_PER_RESPONSE] = float(mask.bool().sum()) / max(1, len(minibatch))


def add_kl_metrics(terms: LossTerms, logprobs: Tensor, microbatch: Batch, spec: KL) -> LossTerms:
    """Add kl/reference and kl/reference_sequence, in nats, where the step has to measure them. Without a
    gradient.

    kl/reference is the mean over response tokens, kl/reference_sequence the mean over responses of the
    sum. Reads the token column reference_logprobs.

    Args:
        logprobs: [T].
    """
    if _KL_SHARES not in microbatch.token_columns:
        return terms
    shares = microbatch.token(_KL_SHARES)
    mask = shares > 0
    new = logprobs.detach()[mask.to(logprobs.device)]
    estimate = estimate_kl(new, microbatch.token("reference_logprobs")[mask].to(new), spec.estimator)
    mean = (estimate * shares[mask].to(new)).sum()
    terms.sums["kl/reference"] = mean
    terms.sums["kl/reference_sequence"] = mean * microbatch.scalars[_TOKENS_PER_RESPONSE]
    return terms
