"""Attention with capped scores, in torch's own operations: its fused kernels have no caps.

Gemma Team 2024, "Gemma 2: Improving Open Language Models at a Practical Size", section 2:

    scores = c tanh(q k^T / (c sqrt(d)))        c the cap

Trainer and rollout engine share the function. It holds the scores of all pairs of tokens, and where gradients
are computed several of them, so its memory grows with the square of a sequence's length.
"""

import torch
from torch import Tensor


def softcapped_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float | None,
    softcap: float,
    dropout: float = 0.0,
) -> Tensor:
    """Compute attention, with scores and their softmax in at least fp32. Returns [N, heads, L, value width].

    Args:
        query: [N, heads, L, d].
        key: [N, kv heads, S, d]; `heads` is a multiple of `kv heads`.
        value: [N, kv heads, S, value width].
        mask: Broadcasts to [N, 1, L, S]: bool, True where a query sees a key, or added to the scores. None:
            each query sees the keys up to its own position, which needs L = S.
        scaling: Factor of the products; None: 1 / sqrt(d).
        dropout: Probability of dropping a weight.
    """
    batch, heads, length, width = query.shape
    kv_heads, seen = key.shape[1], key.shape[2]
    # The query heads of a key head become one axis: no key is repeated.
    grouped = query.reshape(batch, kv_heads, heads // kv_heads, length, width)
    products = grouped @ key[:, :, None].transpose(-1, -2)
    wide = products.to(torch.promote_types(products.dtype, torch.float32))
    scores = (wide * ((width**-0.5 if scaling is None else scaling) / softcap)).tanh() * softcap
    if mask is None:
        mask = torch.ones(length, seen, dtype=torch.bool, device=query.device).tril()
    if mask.dim() > 2:
        mask = mask[:, :, None]
    scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype is torch.bool else scores + mask
    weights = torch.dropout(scores.softmax(-1), dropout, dropout > 0).to(value.dtype)
    return (weights @ value[:, :, None]).flatten(1, 2)
