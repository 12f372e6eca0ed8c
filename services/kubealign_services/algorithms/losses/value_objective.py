"""Critic objective."""

from torch import Tensor

from kubealign_services.algorithms.losses.aggregation import loss_token_mask
from kubealign_services.algorithms.contract import LossTerms, ModelOutputs
from kubealign_services.algorithms.model_outputs import require_output
from kubealign_services.algorithms.losses.value_loss import clipped_value_loss
from kubealign_services.algorithms.losses.loss_weights import token_mean_shares
from kubealign_services.batch.packed import Batch


class ValueObjective:
    """Coefficient times the mean over response tokens of the clipped value loss.

    Reads the token columns loss_mask, old_values and returns, and with mask_truncated, which leaves out
    truncated responses, the sequence column truncated.
    """

    outputs = frozenset({"values"})
    unit = 1

    def __init__(self, clip: float | None, coefficient: float, mask_truncated: bool) -> None:
        self._clip = clip
        self._coefficient = coefficient
        self._mask_truncated = mask_truncated

    def prepare(self, minibatch: Batch) -> None:
        minibatch.token_columns["token_shares"] = token_mean_shares(
            loss_token_mask(minibatch, self._mask_truncated)
        )

    def loss(self, outputs: ModelOutputs, microbatch: Batch) -> LossTerms:
        values = require_output(outputs.values, "values")
        mask = (microbatch.token("token_shares") > 0).to(values.device)

        def response(name: str) -> Tensor:
            return microbatch.token(name).to(values)[mask]

        shares = response("token_shares")
        terms, clipped = clipped_value_loss(
            values[mask], response("old_values"), response("returns"), self._clip
        )
        mean = (shares * terms).sum()
        return LossTerms(
            loss=self._coefficient * mean,
            sums={"critic/loss": mean.detach(), "critic/clip_fraction": (shares * clipped).sum()},
        )
