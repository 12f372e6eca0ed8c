"""KL penalty towards the reference policy: measurement, price and adaptive coefficient.

`ReferenceKL` measures the divergence before the step. `add_kl_metrics` measures it within the step, where the
KL penalty is part of the loss and the batch has no old_logprobs: with one update the step's own forward
pass is the policy that sampled, so a pass before the step would compute the same again.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kubealign.spec.algorithms import KL, KLPlacement
from kubealign_services.algorithms.advantages.statistics import masked_mean
from kubealign_services.algorithms.contract import LossTerms
from kubealign_services.algorithms.losses.kl_estimators import adapt_coefficient, estimate_kl, is_clamped
from kubealign_services.algorithms.losses.loss_weights import token_mean_shares
from kubealign_services.batch.packed import Batch, sequence_sums
from kubealign_services.batch.samples import count_samples

_KL_SHARES, _TOKENS_PER_RESPONSE = "kl_shares", "kl_tokens_a_response"
#: Key of the adaptive coefficient in an algorithm's state.
COEFFICIENT = "kl_coefficient"


def loss_coefficient(spec: KL) -> float:
    """Return the factor of the KL estimate in the loss; 0 where the KL penalty is part of the reward."""
    if spec.placement is KLPlacement.REWARD or spec.fixed is None:
        return 0.0
    return spec.fixed.coefficient


@dataclass(frozen=True)
class MeasuredKL:
    """Divergence of one step.

    penalty: [T], subtracted from the reward at each token (0 where the KL penalty is part of the loss, or
    off). metrics: kl/reference, kl/reference_sequence, kl/clamped_fraction, kl/coefficient; none where no KL
    is measured.
    """

    penalty: Tensor
    metrics: dict[str, float]


class ReferenceKL:
    """KL penalty towards the reference policy, as the spec's `kl` configures it."""

    def __init__(self, spec: KL) -> None:
        self._spec = spec

    @property
    def is_active(self) -> bool:
        return self._spec.active

    @property
    def is_measured_before_step(self) -> bool:
        """True if the advantages need the divergence, so that it has to be measured before the step."""
        return self.is_active and self._spec.placement is KLPlacement.REWARD

    def measure(self, batch: Batch, state: dict[str, float]) -> MeasuredKL:
        """Multiply the step's divergence by the current coefficient, then update an adaptive one (kept in
        `state`).

        Reads the token columns loss_mask, old_logprobs and reference_logprobs; where nothing is measured,
        only loss_mask and behaviour_logprobs (for its dtype). A divergence in the loss is measured within
        the step (`add_kl_metrics`) where old_logprobs are missing.
        """
        mask = batch.token("loss_mask")
        nothing = torch.zeros_like(batch.token("behaviour_logprobs"))
        if not self.is_active:
            return MeasuredKL(nothing, {})
        if not self.is_measured_before_step and "old_logprobs" not in batch.token_columns:
            return MeasuredKL(nothing, {"kl/coefficient": loss_coefficient(self._spec)})
        estimate = estimate_kl(
            batch.token("old_logprobs"), batch.token("reference_logprobs"), self._spec.estimator
        )
        clamped = is_clamped(estimate, self._spec.estimator)
        divergence = torch.where(mask.bool(), estimate, torch.zeros_like(estimate))
        observed = float(sequence_sums(divergence, batch).mean())
        coefficient = self._adapt_coefficient(state, observed, len(batch))
        in_reward = self._spec.placement is KLPlacement.REWARD
        return MeasuredKL(
            penalty=divergence * (coefficient if in_reward else 0.0),
            metrics={
                "kl/reference": float(masked_mean(divergence, mask)),
                "kl/reference_sequence": observed,
                "kl/clamped_fraction": float(masked_mean(clamped.to(estimate.dtype), mask)),
                "kl/coefficient": coefficient,
            },
        )

    def _adapt_coefficient(self, state: dict[str, float], observed: float, sequences: int) -> float:
        """Return the coefficient for this step and store the next one in the state."""
        adaptive = self._spec.adaptive
        if adaptive is None:
            return self._spec.fixed.coefficient if self._spec.fixed is not None else 0.0
        current = state.get(COEFFICIENT, adaptive.initial_coefficient)
        state[COEFFICIENT] = adapt_coefficient(
            current, observed, sequences, adaptive.target, adaptive.horizon
        )
        return current


def add_kl_columns(minibatch: Batch, spec: KL, sequences: Tensor | None = None) -> None:
    """Add each response token's share of the mean divergence, where the step has to measure it.

    Args:
        sequences: [S], True for the samples of the policy, over which the divergence is measured; None: all.
    """
    in_step = spec.active and spec.placement is KLPlacement.LOSS
    if in_step and "old_logprobs" not in minibatch.token_columns:
        mask, count = minibatch.token("loss_mask").bool(), count_samples(minibatch)
        if sequences is not None:
            mask, count = mask & sequences[minibatch.sequence_of_token], int(sequences.sum())
        minibatch.token_columns[_KL_SHARES] = token_mean_shares(mask)
        minibatch.scalars[_TOKENS_PER_RESPONSE] = float(mask.sum()) / max(1, count)


def add_kl_metrics(terms: LossTerms, logprobs: Tensor, microbatch: Batch, spec: KL) -> LossTerms:
    """Add kl/reference and kl/reference_sequence, in nats, and kl/clamped_fraction, where the step has to
    measure them.

    Without a gradient.

    kl/reference is the mean over response tokens, kl/reference_sequence the mean over responses of the
    sum, kl/clamped_fraction the share of response tokens whose estimate was bounded. Reads the token column
    reference_logprobs.

    Args:
        logprobs: [T].
    """
    if _KL_SHARES not in microbatch.token_columns:
        return terms
    shares = microbatch.token(_KL_SHARES)
    mask = shares > 0
    new = logprobs.detach()[mask.to(logprobs.device)]
    estimate = estimate_kl(new, microbatch.token("reference_logprobs")[mask].to(new), spec.estimator)
    token_shares = shares[mask].to(new)
    mean = (estimate * token_shares).sum()
    terms.sums["kl/reference"] = mean
    terms.sums["kl/reference_sequence"] = mean * microbatch.scalars[_TOKENS_PER_RESPONSE]
    terms.sums["kl/clamped_fraction"] = (is_clamped(estimate, spec.estimator) * token_shares).sum()
    return terms
