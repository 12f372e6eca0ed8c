"""Log-probabilities of whole responses under the policy and the reference."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kubealign_services.batch.packed import Batch, sequence_sums


@dataclass(frozen=True)
class ResponseLogprobs:
    """Log-probabilities of N responses, [N] each.

    logprob: summed over the response's tokens, with gradient. reference: the reference policy's sum, 0
    without a reference. length: response tokens, at least 1.
    """

    logprob: Tensor
    reference: Tensor
    length: Tensor

    @property
    def log_ratio(self) -> Tensor:
        """Log-ratio of the whole response: log p - log p_ref."""
        return self.logprob - self.reference

    @property
    def mean_logprob(self) -> Tensor:
        """Log-probability per token."""
        return self.logprob / self.length

    def select(self, responses: Tensor) -> "ResponseLogprobs":
        """Return the responses with these indices, int64 [M], in this order."""
        index = responses.to(self.logprob.device)
        return ResponseLogprobs(self.logprob[index], self.reference[index], self.length[index])


def response_logprobs(logprobs: Tensor, batch: Batch, reference: bool) -> ResponseLogprobs:
    """Sum the log-probabilities of the batch's S responses.

    Reads the token columns loss_mask and, with `reference`, reference_logprobs. Raises KeyError for a
    missing column.

    Args:
        logprobs: [T].
    """
    mask = batch.token("loss_mask").bool().to(logprobs.device)

    def total(column: Tensor) -> Tensor:
        return sequence_sums(column.to(logprobs).where(mask, logprobs.new_zeros(())), batch)

    return ResponseLogprobs(
        logprob=total(logprobs),
        reference=total(batch.token("reference_logprobs"))
        if reference
        else torch.zeros(len(batch), dtype=logprobs.dtype, device=logprobs.device),
        length=total(mask).clamp(min=1),
    )


def pairwise_accuracy(margin: Tensor) -> Tensor:
    """Return 1 where the margin is above 0, 0.5 where it is 0: a policy equal to its reference has no
    preference.
    """
    return (margin.sign() + 1) / 2
