"""Auxiliary language-model loss that preserves a base model's knowledge while a score head is fitted."""

from torch import Tensor

from kubealign_services.batch.packed import Batch


def lm_loss(logprobs: Tensor, microbatch: Batch) -> Tensor:
    """Return the microbatch's part of -log p(token), weighted by the token column language_shares.

    Scalar, with gradient.

    Args:
        logprobs: [T].
    """
    shares = microbatch.token("language_shares").to(logprobs)
    counted = shares > 0
    return -(shares[counted] * logprobs[counted]).sum()
