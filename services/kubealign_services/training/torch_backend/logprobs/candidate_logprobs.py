"""Log-probabilities of several candidate tokens at each position, without the logits of all positions at
once.

The head is applied to a chunk of positions at a time, and again in the backward pass, with an explicit
gradient: for the candidates c_1 .. c_K of a position, each with the gradient g_k,

    d (sum_k g_k log p(c_k)) / d logit_j = (sum of g_k with c_k = j) - p_j sum_k g_k
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kubealign_services.training.torch_backend.logprobs.chunked_logits import (
    HeadGradients,
    Temperature,
    compute_logits,
    logit_chunks,
)


def candidate_logprobs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    candidates: Tensor,
    temperature: Temperature,
    softcap: float | None = None,
) -> Tensor:
    """Return the log-probability of each candidate under softmax(logits / temperature), [P, K] in at least
    fp32.

    Differentiable once.

    Args:
        hidden: [P, H].
        weight: [V, H].
        bias: [V] or None.
        candidates: int64 [P, K].
        softcap: Cap of the logits, see `compute_logits`.
    """
    logprobs: Tensor = _CandidateLogprobs.apply(hidden, weight, bias, candidates, temperature, softcap)
    return logprobs


@torch.no_grad()
def topk_logprobs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    count: int,
    temperature: Temperature,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the most likely tokens at each position.

    Returns (tokens int64 [P, K], most likely first; their log-probabilities under softmax(logits /
    temperature), [P, K] in at least fp32), where K is the smaller of count and the vocabulary.

    Args:
        hidden: [P, H].
        softcap: Cap of the logits, see `compute_logits`.
    """
    positions, count = hidden.shape[0], min(count, weight.shape[0])
    tokens = hidden.new_zeros((positions, count), dtype=torch.int64)
    logprobs = hidden.new_zeros((positions, count), dtype=torch.promote_types(hidden.dtype, torch.float32))
    for rows in logit_chunks(positions, weight.shape[0]):
        logits = compute_logits(hidden, weight, bias, temperature, rows, softcap)
        top, tokens[rows] = logits.topk(count, -1)
        logprobs[rows] = top - logits.logsumexp(-1, keepdim=True)
    return tokens, logprobs


class _CandidateLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        candidates: Tensor,
        temperature: Temperature,
        softcap: float | None,
    ) -> Tensor:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        logprobs = hidden.new_zeros(candidates.shape, dtype=wide)
        normaliser = hidden.new_zeros(hidden.shape[0], dtype=wide)
        for rows in logit_chunks(hidden.shape[0], weight.shape[0]):
            logits = compute_logits(hidden, weight, bias, temperature, rows, softcap)
            normaliser[rows] = logits.logsumexp(-1)
            logprobs[rows] = logits.gather(-1, candidates[rows]) - normaliser[rows, None]
        ctx.save_for_backward(hidden, weight, bias, candidates, normaliser)
        ctx.temperature, ctx.softcap = temperature, softcap
        return logprobs

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, to_logprobs: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None, None]:
        hidden, weight, bias, candidates, normaliser = ctx.saved_tensors
        back = HeadGradients(hidden, weight, bias, ctx.needs_input_grad[:3], ctx.temperature, ctx.softcap)
        for rows in logit_chunks(hidden.shape[0], weight.shape[0]):
            upstream = to_logprobs[rows]
            logits = compute_logits(hidden, weight, bias, ctx.temperature, rows, ctx.softcap)
            slope = back.cap_slope(rows, logits)
            gradient = logits.sub_(normaliser[rows, None]).exp_().mul_(-upstream.sum(-1, keepdim=True))
            gradient.scatter_add_(-1, candidates[rows], upstream)
            back.add(rows, gradient, slope)
        return back.hidden, back.weight, back.bias, None, None, None
