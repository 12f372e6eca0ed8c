"""Auxiliary language-model loss that preserves a base model's knowledge while a score head is fitted."""

from torch import Tensor

from kubealign_services.algorithms.contract import ModelOutputs, require_output
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


def score_outputs(coefficient: float) -> frozenset[str]:
    """Return the outputs that an objective on scores needs with this coefficient of the loss."""
    return frozenset({"values", "logprobs"} if coefficient > 0 else {"values"})


def add_lm_loss(
    loss: Tensor, sums: dict[str, Tensor], coefficient: float, outputs: ModelOutputs, microbatch: Batch
) -> Tensor:
    """Return the loss with the language-model loss, whose part is added to the sums; unchanged where the
    coefficient is 0.
    """
    if coefficient == 0:
        return loss
    language = lm_loss(require_output(outputs.logprobs, "logprobs"), microbatch)
    sums["rm/language_loss"] = language.detach()
    return loss + coefficient * language
