"""Proximal policy optimisation with a learned critic."""

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.gae import gae, last_response_tokens
from kubealign_services.algorithms.reference_kl import ReferenceKL
from kubealign_services.algorithms.token_policy import TokenPolicyObjective
from kubealign_services.algorithms.value_loss import explained_variance
from kubealign_services.algorithms.value_objective import ValueObjective
from kubealign_services.algorithms.whitening import masked_mean, masked_std, whiten
from kubealign_services.batch.packed import Batch


class PPO:
    """Schulman et al. 2017, for language models as in Ziegler et al. 2019 and Ouyang et al. 2022.

    A token is an action. The response's reward stands at its last token; where the KL is placed in the
    reward, each token also pays for its divergence from the reference:

        r_t = -beta KL_t + [t is last] reward        A, R = GAE(r, V)
        A <- (A - mean) / std        over the step's response tokens, where whitenAdvantages says so

        policy loss = mean of -min(r A, clip(r, 1 - low, 1 + high) A) [+ beta KL] - entropy_coefficient H
        critic loss = value_coefficient * mean of 1/2 max((V - R)^2, (V_old + clip(V - V_old, -c, c) - R)^2)

    means over all response tokens of a minibatch.
    """

    needs_critic = True

    def __init__(self, entry: spec.PPO) -> None:
        self._spec = entry
        self._kl = ReferenceKL(entry.kl)
        self.needs_reference = self._kl.active
        self.needs_old_logprobs = self._kl.active or entry.updates_per_step > 1

    def policy_objective(self) -> TokenPolicyObjective:
        return TokenPolicyObjective(
            clip=self._spec.clip,
            entropy_coefficient=self._spec.entropy_coefficient,
            aggregation=spec.LossAggregation.TOKEN_MEAN,
            kl_coefficient=self._kl.loss_coefficient,
            kl_estimator=self._spec.kl.estimator,
        )

    def value_objective(self) -> ValueObjective:
        return ValueObjective(self._spec.value_clip or None, self._spec.value_coefficient)

    def advantages(self, batch: Batch, state: dict[str, float]) -> dict[str, float]:
        """Reads the token columns loss_mask, behaviour_logprobs, values (and, where KL is measured,
        old_logprobs and reference_logprobs) and the sequence column rewards. Adds the token columns
        advantages, returns, old_values. Advantage metrics are of before whitening."""
        mask, values = batch.token("loss_mask"), batch.token("values")
        divergence = self._kl.measure(batch, state)
        rewards = -divergence.penalty.to(values.dtype)
        last, sequences = last_response_tokens(mask, batch.cu_seqlens)
        rewards[last] += batch.sequence("rewards")[sequences].to(values.dtype)

        discount = self._spec.gae
        advantages, returns = gae(rewards, values, mask, batch.cu_seqlens, discount.gamma, discount.lambda_)
        batch.token_columns["old_values"] = values
        batch.token_columns["returns"] = returns
        batch.token_columns["advantages"] = (
            whiten(advantages, mask) if self._spec.whiten_advantages else advantages
        )
        return divergence.metrics | {
            "advantage/mean": float(masked_mean(advantages, mask)),
            "advantage/std": float(masked_std(advantages, mask)),
            "return/mean": float(masked_mean(returns, mask)),
            "value/mean": float(masked_mean(values, mask)),
            "critic/explained_variance": explained_variance(values, returns, mask),
        }
