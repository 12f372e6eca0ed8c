"""Optimal token baseline: a baseline for each position of a prompt's responses."""

import torch
from torch import Tensor

from kubealign_services.batch.packed import Batch, sequence_sums

#: Added to the sum of the weights, as in verl.
EPSILON = 1e-8


def optimal_token_advantages(batch: Batch, returns: Tensor) -> Tensor:
    """Compute the advantages of tokens, float64 [T], 0 outside the responses (Li et al. 2026, "The Optimal
    Token Baseline: Variance Reduction for Long-Horizon LLM-RL"; verl's optimal_token_baseline).

    At response token t of a response with return R, over the responses i of its prompt that have a token t:

        A_t = R - B_t,    B_t = sum_i W_it R_i / (sum_i W_it + 1e-8)
        W_it = sum of w over the tokens 1 to t of response i
        w = 1 - 2 p + sum over the vocabulary of p_v^2

    w is the squared norm of the gradient of log p with respect to the logits, p the probability of the
    sampled token. A token that no other response of the prompt reaches has advantage 0.

    Reads the token columns loss_mask, old_logprobs and old_collision and the sequence column group.

    Args:
        returns: [S].
    """
    mask = batch.token("loss_mask").bool()
    sequence = batch.sequence_of_token[mask]
    probabilities = batch.token("old_logprobs")[mask].double().exp()
    # Rounding can make the norm of a nearly certain token negative.
    norms = (1 - 2 * probabilities + batch.token("old_collision")[mask].double()).clamp(min=0)
    lengths = sequence_sums(mask.long(), batch)
    starts = lengths.cumsum(0) - lengths
    totals = torch.cat([norms.new_zeros(1), norms.cumsum(0)])
    weights = totals[1:] - totals[starts[sequence]]
    position = torch.arange(len(sequence)) - starts[sequence]
    _, group = torch.unique(batch.sequence("group"), return_inverse=True)
    _, slot = torch.unique(group[sequence] * (len(sequence) + 1) + position, return_inverse=True)
    of_token = returns.double()[sequence]
    empty = norms.new_zeros(len(sequence))
    weighted = empty.index_add(0, slot, weights * of_token)
    baseline = weighted / (empty.index_add(0, slot, weights) + EPSILON)
    advantages = torch.zeros(len(mask), dtype=torch.float64)
    advantages[mask] = of_token - baseline[slot]
    return advantages
