"""Log-probabilities and entropies from hidden states, without the logits of all tokens at once.

The vocabulary's head is applied to a chunk of tokens at a time, and again in the backward pass: a pack of
8,192 tokens and a vocabulary of 128,000 would else hold 4 GiB of logits in fp32, several times over. The
gradient is written out, so that it takes a few passes over a chunk's logits, which are most of a small
model's memory traffic:

    d log p(y) / d logit_j = 1[j = y] - p_j          d H / d logit_j = -p_j (log p_j + H)
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

# Logits that may exist at a time: 64 MiB in fp32.
_LOGITS = 1 << 24


def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    temperature: float,
    with_entropy: bool,
) -> tuple[Tensor, Tensor]:
    """hidden [P, H], weight [V, H], bias [V] or None, targets int64 [P] -> (log-probability of each target
    under softmax(logits / temperature), entropy of that distribution in nats), each [P] in at least fp32; the
    entropy is zeros where it is not wanted. Can be differentiated once."""
    found: tuple[Tensor, Tensor] = _TokenLogprobs.apply(
        hidden, weight, bias, targets, temperature, with_entropy
    )
    return found


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        with_entropy: bool,
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        logprobs, entropy, normaliser = (hidden.new_zeros(hidden.shape[0], dtype=wide) for _ in range(3))
        for rows in _chunks(hidden.shape[0], weight.shape[0]):
            logits = _logits(hidden[rows], weight, bias, temperature)
            normaliser[rows] = logits.logsumexp(-1)
            logprobs[rows] = logits.gather(-1, targets[rows, None])[:, 0] - normaliser[rows]
            if with_entropy:
                mean = torch.softmax(logits, -1).mul_(logits).sum(-1)
                entropy[rows] = normaliser[rows] - mean
        ctx.save_for_backward(hidden, weight, bias, targets, normaliser, entropy)
        ctx.temperature = temperature
        ctx.with_entropy = with_entropy
        ctx.set_materialize_grads(False)
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, to_logprobs: Tensor | None, to_entropy: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None, None]:
        hidden, weight, bias, targets, normaliser, entropy = ctx.saved_tensors
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        if not ctx.with_entropy:
            to_entropy = None
        into_hidden = torch.zeros_like(hidden) if wants_hidden else None
        into_weight = torch.zeros_like(weight) if wants_weight else None
        into_bias = torch.zeros_like(bias) if wants_bias else None
        for rows in _chunks(hidden.shape[0], weight.shape[0]):
            scaled = _logits(hidden[rows], weight, bias, ctx.temperature).sub_(normaliser[rows, None])
            gradient = _into_logits(
                scaled, targets[rows], entropy[rows], _at(to_logprobs, rows), _at(to_entropy, rows)
            )
            gradient = gradient.div_(ctx.temperature) if ctx.temperature != 1.0 else gradient
            gradient = gradient.to(hidden.dtype)
            if into_hidden is not None:
                torch.mm(gradient, weight, out=into_hidden[rows])
            if into_weight is not None:
                into_weight.addmm_(gradient.T, hidden[rows])
            if into_bias is not None:
                into_bias += gradient.sum(0)
        return into_hidden, into_weight, into_bias, None, None, None


def _into_logits(
    log_p: Tensor, targets: Tensor, entropy: Tensor, to_logprobs: Tensor | None, to_entropy: Tensor | None
) -> Tensor:
    """The gradient with respect to the logits, [rows, V]; log_p, [rows, V], is overwritten."""
    outer = None
    if to_entropy is not None:
        # g_H (log p + H) + g: what p_j is to be multiplied by, less its sign.
        outer = (log_p + entropy[:, None]).mul_(to_entropy[:, None])
    gradient = log_p.exp_()
    if outer is not None:
        gradient.mul_(outer.add_(to_logprobs[:, None]) if to_logprobs is not None else outer).neg_()
    elif to_logprobs is not None:
        gradient.mul_(-to_logprobs[:, None])
    else:
        gradient.zero_()
    if to_logprobs is not None:
        gradient.scatter_add_(-1, targets[:, None], to_logprobs[:, None])
    return gradient


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    logits = linear(hidden, weight, bias)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return logits.div_(temperature) if temperature != 1.0 else logits


def _chunks(tokens: int, vocabulary: int) -> Iterator[slice]:
    size = max(1, _LOGITS // vocabulary)
    return (slice(start, min(start + size, tokens)) for start in range(0, tokens, size))


def _at(gradient: Tensor | None, rows: slice) -> Tensor | None:
    return None if gradient is None else gradient[rows]
