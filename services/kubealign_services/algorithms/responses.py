"""A response as a whole: the log-probability of its tokens together, under the policy and the reference."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kubealign_services.batch.packed import Batch, sequence_sums


@dataclass(frozen=True)
class Responses:
    """[N] each. logprob: summed over the response's tokens, with gradient. reference: the reference's own, 0
    where there is none. length: response tokens, at least 1."""

    logprob: Tensor
    reference: Tensor
    length: Tensor

    @property
    def log_ratio(self) -> Tensor:
        """log p - log p_ref of the whole response."""
        return self.logprob - self.reference

    @property
    def mean_logprob(self) -> Tensor:
        """For each token."""
        return self.logprob / self.length

    def every_second(self, first: int) -> "Responses":
        """Those at first, first + 2, ..."""
        return Responses(self.logprob[first::2], self.reference[first::2], self.length[first::2])


def responses(logprobs: Tensor, batch: Batch, reference: bool) -> Responses:
    """The batch's S responses. Reads the token columns loss_mask and, with `reference`, reference_logprobs.

    logprobs: [T]. Raises KeyError for a column that is missing."""
    chosen = batch.token("loss_mask").bool().to(logprobs.device)

    def total(column: Tensor) -> Tensor:
        return sequence_sums(column.to(logprobs).where(chosen, logprobs.new_zeros(())), batch)

    return Responses(
        logprob=total(logprobs),
        reference=total(batch.token("reference_logprobs"))
        if reference
        else torch.zeros(len(batch), dtype=logprobs.dtype, device=logprobs.device),
        length=total(chosen).clamp(min=1),
    )


def told_apart(margin: Tensor) -> Tensor:
    """1 where the margin is above 0, a half where it is 0: a policy that is its own reference knows
    nothing."""
    return (margin.sign() + 1) / 2
