"""The policy's loss where each token is an action: PPO and GRPO."""

from torch import Tensor

from kubealign.spec.algorithms import Clip, KLEstimator, LossAggregation
from kubealign_services.algorithms.contract import LossTerms, ModelOutputs
from kubealign_services.algorithms.kl import kl_loss
from kubealign_services.algorithms.mismatch import add_gap, prepare_gap
from kubealign_services.algorithms.outputs import required
from kubealign_services.algorithms.surrogate import clipped_surrogate
from kubealign_services.algorithms.weights import sequence_mean_shares, token_mean_shares
from kubealign_services.batch.packed import Batch


class TokenPolicyObjective:
    """mean over response tokens of

        -min(r A, clip(r) A) + kl_coefficient * KL(policy || reference) - entropy_coefficient * H

    with r = p / p_old.

    Reads the token columns loss_mask, advantages, old_logprobs (without it the ratio is one by
    construction) and, where kl_coefficient is not 0, reference_logprobs. `aggregation` says which mean."""

    outputs = frozenset({"logprobs", "entropy"})
    unit = 1

    def __init__(
        self,
        clip: Clip,
        entropy_coefficient: float,
        aggregation: LossAggregation,
        kl_coefficient: float,
        kl_estimator: KLEstimator,
    ) -> None:
        self._clip = clip
        self._entropy_coefficient = entropy_coefficient
        self._aggregation = aggregation
        self._kl_coefficient = kl_coefficient
        self._kl_estimator = kl_estimator

    def prepare(self, minibatch: Batch) -> None:
        if self._aggregation is LossAggregation.TOKEN_MEAN:
            shares = token_mean_shares(minibatch.token("loss_mask"))
        else:
            shares = sequence_mean_shares(minibatch)
        minibatch.token_columns["token_shares"] = shares
        prepare_gap(minibatch)

    def loss(self, outputs: ModelOutputs, microbatch: Batch) -> LossTerms:
        logprobs = required(outputs.logprobs, "logprobs")
        mask = microbatch.token("loss_mask").bool().to(logprobs.device)

        def response(column: Tensor) -> Tensor:
            return column.to(logprobs)[mask]

        new = logprobs[mask]
        entropy = response(required(outputs.entropy, "entropy"))
        shares = response(microbatch.token("token_shares"))
        old = (
            response(microbatch.token("old_logprobs"))
            if "old_logprobs" in microbatch.token_columns
            else new.detach()
        )
        terms = clipped_surrogate(
            new - old, response(microbatch.token("advantages")), self._clip.low, self._clip.high
        )

        policy = (shares * terms.loss).sum()
        mean_entropy = (shares * entropy).sum()
        loss = policy
        if self._entropy_coefficient != 0:  # else its gradient would be computed, only to count for nothing
            loss = loss - self._entropy_coefficient * mean_entropy
        sums = {
            "policy/loss": policy.detach(),
            "policy/clip_fraction": (shares * terms.clipped).sum(),
            "policy/ratio_mean": (shares * terms.ratio).sum(),
            "policy/approx_kl": (shares * terms.approximate_kl).sum(),
            "policy/entropy": mean_entropy.detach(),
        }
        if self._kl_coefficient > 0:
            reference = response(microbatch.token("reference_logprobs"))
            divergence = (shares * kl_loss(new, reference, self._kl_estimator)).sum()
            loss = loss + self._kl_coefficient * divergence
            sums["policy/kl_loss"] = divergence.detach()
        largest = terms.ratio.max() if len(new) else new.detach().sum()
        total = LossTerms(loss=loss, sums=sums, maxima={"policy/ratio_max": largest})
        return add_gap(total, logprobs, microbatch)
