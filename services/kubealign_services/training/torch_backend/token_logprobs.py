"""Log-probabilities and entropies from hidden states, without the logits of all tokens at once.

The vocabulary's head is applied to a chunk of tokens at a time, and again in the backward pass: a pack of
8,192 tokens and a vocabulary of 128,000 would else hold 4 GiB of logits in fp32, several times over. The
gradient is written out, so that it takes a few passes over a chunk's logits, which are most of a small
model's memory traffic:

    d log p(y) / d logit_j = 1[j = y] - p_j          d H / d logit_j = -p_j (log p_j + H)
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kubealign_services.training.torch_backend.chunked_logits import HeadGradients, chunks, logits_of


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
        for rows in chunks(hidden.shape[0], weight.shape[0]):
            logits = logits_of(hidden[rows], weight, bias, temperature)
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
        if not ctx.with_entropy:
            to_entropy = None
        back = HeadGradients(hidden, weight, bias, ctx.needs_input_grad[:3], ctx.temperature)
        for rows in chunks(hidden.shape[0], weight.shape[0]):
            scaled = logits_of(hidden[rows], weight, bias, ctx.temperature).sub_(normaliser[rows, None])
            gradient = _into_logits(
                scaled, targets[rows], entropy[rows], _at(to_logprobs, rows), _at(to_entropy, rows)
            )
            back.add(rows, gradient)
        return back.hidden, back.weight, back.bias, None, None, None


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


def _at(gradient: Tensor | None, rows: slice) -> Tensor | None:
    return None if gradient is None else gradient[rows]
