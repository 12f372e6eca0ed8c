"""Collision probabilities from hidden states, in chunks."""

import torch
from torch import Tensor

from kubealign_services.training.torch_backend.logprobs.chunked_logits import (
    Temperature,
    cache_blocks,
    compute_logits,
    logit_chunks,
)


@torch.no_grad()
def collision_probabilities(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    temperature: Temperature,
    softcap: float | None = None,
) -> Tensor:
    """Compute the sum over the vocabulary of p^2, p = softmax(logits / temperature), [P] in at least fp32.

    Without a gradient. Applies the head once more than `token_logprobs`.

    Args:
        hidden: [P, H].
        weight: [V, H].
        bias: [V] or None.
        softcap: Cap of the logits, see `compute_logits`.
    """
    result = hidden.new_zeros(hidden.shape[0], dtype=torch.promote_types(hidden.dtype, torch.float32))
    for rows in logit_chunks(hidden.shape[0], weight.shape[0]):
        logits = compute_logits(hidden, weight, bias, temperature, rows, softcap)
        for block in cache_blocks(rows, weight.shape[0], hidden.device):
            part = logits[block.start - rows.start : block.stop - rows.start]
            result[block] = part.softmax(-1).square_().sum(-1)
    return result
