"""The language-model loss that keeps a trunk's knowledge while another head is fitted."""

from torch import Tensor

from kubealign_services.batch.packed import Batch


def language_loss(logprobs: Tensor, microbatch: Batch) -> Tensor:
    """The micro-batch's part of -log p(token), weighed by the token column language_shares. Scalar, with
    gradient.

    logprobs: [T]."""
    shares = microbatch.token("language_shares").to(logprobs)
    counted = shares > 0
    return -(shares[counted] * logprobs[counted]).sum()
