"""Log-probabilities and entropies from hidden states, without the logits of all tokens at once.

The language-model head is applied to a chunk of tokens at a time: a pack of 8,192 tokens and a vocabulary of
128,000 would otherwise hold 4 GiB of logits in fp32, several times over. When everything fits into one chunk,
its probabilities are stored for the backward pass; otherwise the head is applied again. The gradient is
explicit, so that it takes few passes over the logits, which dominate a small model's memory traffic:

    d log p(y) / d logit_j = 1[j = y] - p_j          d H / d logit_j = -p_j (log p_j + H)
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kubealign_services.training.torch_backend.logprobs.chunked_logits import (
    HeadGradients,
    Temperature,
    cache_blocks,
    compute_logits,
    fits_one_chunk,
    logit_chunks,
)


def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    temperature: Temperature,
    with_entropy: bool,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute log-probabilities of the targets under softmax(logits / temperature), and the entropy of that
    distribution.

    Returns (log-probabilities, entropy in nats), each [P] in at least fp32; the entropy is zeros when not
    requested. Differentiable once.

    Args:
        hidden: [P, H].
        weight: [V, H].
        bias: [V] or None.
        targets: int64 [P].
        softcap: Cap of the logits, see `compute_logits`.
    """
    # The gradient of a cap needs the logits, of which the probabilities know differences only.
    keep = softcap is None and torch.is_grad_enabled() and fits_one_chunk(hidden.shape[0], weight.shape[0])
    result: tuple[Tensor, Tensor] = _TokenLogprobs.apply(
        hidden, weight, bias, targets, temperature, with_entropy, keep, softcap
    )
    return result


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: Temperature,
        with_entropy: bool,
        keep: bool,
        softcap: float | None,
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        logprobs, entropy, normaliser = (hidden.new_zeros(hidden.shape[0], dtype=wide) for _ in range(3))
        ctx.probabilities = None
        for rows in logit_chunks(hidden.shape[0], weight.shape[0]):
            logits = compute_logits(hidden, weight, bias, temperature, rows, softcap)
            for block in cache_blocks(rows, weight.shape[0], hidden.device):
                part = logits[block.start - rows.start : block.stop - rows.start]
                highest = part.amax(-1, keepdim=True)
                shifted = part.sub_(highest)
                of_target = shifted.gather(-1, targets[block, None])[:, 0]
                exponentials = shifted.exp()
                total = exponentials.sum(-1)
                log_total = total.log()
                normaliser[block] = highest[:, 0] + log_total
                logprobs[block] = of_target - log_total
                if with_entropy:
                    entropy[block] = log_total - shifted.mul_(exponentials).sum(-1) / total
                if keep:
                    torch.div(exponentials, total[:, None], out=part)
            ctx.probabilities = logits if keep else None
        ctx.save_for_backward(hidden, weight, bias, targets, normaliser, entropy)
        ctx.temperature, ctx.softcap = temperature, softcap
        ctx.with_entropy = with_entropy
        ctx.set_materialize_grads(False)
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, to_logprobs: Tensor | None, to_entropy: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None, None, None, None]:
        hidden, weight, bias, targets, normaliser, entropy = ctx.saved_tensors
        if not ctx.with_entropy:
            to_entropy = None
        # The stored probabilities are overwritten below: a second backward pass applies the head again.
        stored, ctx.probabilities = ctx.probabilities, None
        if to_entropy is not None:
            stored = None  # log p of a probability that has become 0 is lost
        back = HeadGradients(hidden, weight, bias, ctx.needs_input_grad[:3], ctx.temperature, ctx.softcap)
        for rows in logit_chunks(hidden.shape[0], weight.shape[0]):
            if stored is None:
                chunk = compute_logits(hidden, weight, bias, ctx.temperature, rows, ctx.softcap)
                slope = back.cap_slope(rows, chunk)
            else:
                chunk, slope = stored, None
            for block in cache_blocks(rows, weight.shape[0], hidden.device):
                part = chunk[block.start - rows.start : block.stop - rows.start]
                if stored is None:
                    part.sub_(normaliser[block, None])
                _write_logit_gradient(
                    part,
                    stored is not None,
                    targets[block],
                    entropy[block],
                    _rows_of(to_logprobs, block),
                    _rows_of(to_entropy, block),
                )
            back.add(rows, chunk, slope)
        return back.hidden, back.weight, back.bias, None, None, None, None, None


def _write_logit_gradient(
    part: Tensor,
    are_probabilities: bool,
    targets: Tensor,
    entropy: Tensor,
    to_logprobs: Tensor | None,
    to_entropy: Tensor | None,
) -> None:
    """Overwrite `part` with the gradient with respect to the logits.

    Args:
        part: [rows, V], log p or p.
    """
    outer = None
    if to_entropy is not None:
        # g_H (log p + H) + g: the factor of p_j, apart from its sign.
        outer = (part + entropy[:, None]).mul_(to_entropy[:, None])
    gradient = part if are_probabilities else part.exp_()
    if outer is not None:
        gradient.mul_(outer.add_(to_logprobs[:, None]) if to_logprobs is not None else outer).neg_()
    elif to_logprobs is not None:
        gradient.mul_(-to_logprobs[:, None])
    else:
        gradient.zero_()
    if to_logprobs is not None:
        gradient.scatter_add_(-1, targets[:, None], to_logprobs[:, None])


def _rows_of(gradient: Tensor | None, rows: slice) -> Tensor | None:
    return None if gradient is None else gradient[rows]
