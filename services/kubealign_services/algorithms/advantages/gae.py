"""Generalised advantage estimation on packed sequences."""

import torch
from torch import Tensor


def gae(
    rewards: Tensor,
    values: Tensor,
    loss_mask: Tensor,
    cu_seqlens: Tensor,
    gamma: float,
    lambda_: float | Tensor,
) -> tuple[Tensor, Tensor]:
    """Compute advantages and returns of the response tokens (Schulman et al. 2016, eq.

    16), both [T], 0 at all other tokens.

        delta_t = r_t + gamma V_{t+1} - V_t        A_t = delta_t + gamma lambda A_{t+1}        R_t = A_t +
        V_t

    A time step is a response token: tokens that `loss_mask` leaves out (the prompt, a tool's response) are
    no time steps. The value after a sequence's last response token is 0.

    Args:
        rewards: [T], floating; the results have the same dtype.
        values: [T], same dtype. values[t] is the value of the state before token t.
        loss_mask: [T], non-zero at response tokens.
        cu_seqlens: [S + 1] offsets.
        lambda_: One for all sequences, or float64 [S].
    """
    steps = loss_mask.bool().nonzero().squeeze(1)
    starts, ends, sequences_with_steps = _spans(loss_mask, cu_seqlens)
    state_values = values[steps]
    following = torch.zeros_like(state_values)
    following[:-1] = state_values[1:]
    following[ends - 1] = 0
    deltas = rewards[steps] + gamma * following - state_values

    # Longest first: the sequences that have a k-th token from the end are then a prefix.
    counts, order = (ends - starts).sort(descending=True)
    ends = ends[order]
    lambdas = torch.as_tensor(lambda_, dtype=torch.float64).expand(len(cu_seqlens) - 1)
    decay = (gamma * lambdas[sequences_with_steps]).to(values.dtype)[order]
    estimates = torch.zeros_like(deltas)
    carry = torch.zeros_like(deltas[: len(counts)])
    longest = int(counts[0]) if len(counts) else 0
    reaching = torch.searchsorted(-counts, -torch.arange(1, longest + 1), right=True)
    for back, sequences in enumerate(reaching.tolist(), start=1):
        index = ends[:sequences] - back
        carry = deltas[index] + decay[:sequences] * carry[:sequences]
        estimates[index] = carry

    advantages, returns = torch.zeros_like(values), torch.zeros_like(values)
    advantages[steps] = estimates
    returns[steps] = estimates + state_values
    return advantages, returns


def length_adaptive_lambda(loss_mask: Tensor, cu_seqlens: Tensor, alpha: float) -> Tensor:
    """Return lambda of each sequence, float64 [S]: 1 - 1 / (alpha n) for n response tokens, at least 0.

    Yue et al. 2025, "VAPO: Efficient and Reliable Reinforcement Learning for Advanced Reasoning Tasks",
    arXiv:2504.05118, eq. 6: the sum of lambda's powers, 1 / (1 - lambda), is alpha n.
    """
    lengths = _counts(loss_mask, cu_seqlens).double().clamp(min=1)
    return (1 - 1 / (alpha * lengths)).clamp(min=0)


def last_response_tokens(loss_mask: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
    """Return int64 (tokens, sequences), of equal length: each sequence with a response token, and the index
    of its last one.
    """
    steps = loss_mask.bool().nonzero().squeeze(1)
    counts = _counts(loss_mask, cu_seqlens)
    sequences = counts.nonzero().squeeze(1)
    return steps[counts.cumsum(0)[sequences] - 1], sequences


def _counts(loss_mask: Tensor, cu_seqlens: Tensor) -> Tensor:
    before = torch.zeros(len(loss_mask) + 1, dtype=torch.int64)
    before[1:] = loss_mask.bool().cumsum(0)
    return before[cu_seqlens.long()].diff()


def _spans(loss_mask: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return start and end of each sequence among the response tokens alone, without the sequences that have
    none, and bool [S], True for the sequences that have one.
    """
    counts = _counts(loss_mask, cu_seqlens)
    ends = counts.cumsum(0)
    non_empty = counts > 0
    return (ends - counts)[non_empty], ends[non_empty], non_empty
