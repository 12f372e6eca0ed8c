"""Critic objective: clipped value loss and explained variance."""

from torch import Tensor

from kubealign_services.algorithms.advantages.statistics import masked_mean
from kubealign_services.algorithms.contract import LossTerms, ModelOutputs, require_output
from kubealign_services.algorithms.losses.aggregation import loss_token_mask
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


def clipped_value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, clip: float | None
) -> tuple[Tensor, Tensor]:
    """Return (loss, clipped), element by element: half the squared error, with the move from the old value
    bounded.

    Schulman et al. 2017's implementation; Ouyang et al. 2022:

        1/2 max((V - R)^2, (V_old + clip(V - V_old, -c, c) - R)^2)

    clip None: 1/2 (V - R)^2. clipped: 1.0 where the bound removed the gradient; no gradient.
    """
    unclipped = (values - returns).square()
    if clip is None:
        return unclipped / 2, unclipped.detach() * 0
    move = values - old_values
    bounded = (old_values + move.clamp(-clip, clip) - returns).square()
    return unclipped.maximum(bounded) / 2, ((move.abs() > clip) & (bounded > unclipped)).to(values.dtype)


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> float:
    """Compute 1 - Var(R - V) / Var(R) over the entries where mask is non-zero.

    1 for a perfect critic, 0 for a constant one, below 0 for one that is worse than a constant. 0 where
    the returns do not vary.
    """
    spread = _variance(returns, mask)
    if spread <= 1e-12 * (1 + float(masked_mean(returns, mask)) ** 2):
        return 0.0
    return 1 - _variance(returns - values, mask) / spread


def _variance(values: Tensor, mask: Tensor) -> float:
    return float(masked_mean((values - masked_mean(values, mask)).square(), mask))
