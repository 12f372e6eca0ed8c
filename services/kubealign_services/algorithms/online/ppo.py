"""PPO: proximal policy optimisation with a learned critic."""

from torch import Tensor

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.advantages.gae import gae, length_adaptive_lambda
from kubealign_services.algorithms.advantages.normalization import normalize
from kubealign_services.algorithms.advantages.statistics import advantage_metrics, masked_mean
from kubealign_services.algorithms.advantages.token_rewards import place_rewards
from kubealign_services.algorithms.losses.value_objective import ValueObjective, explained_variance
from kubealign_services.algorithms.online.base import ClippedOnlineAlgorithm
from kubealign_services.batch.packed import Batch
from kubealign_services.batch.reward_columns import TURN_REWARDS


class PPOAlgorithm(ClippedOnlineAlgorithm):
    """Schulman et al. 2017, "Proximal Policy Optimization Algorithms"; for language models as in Ziegler et
    al. 2019 and Ouyang et al. 2022.

    A token is an action. The response's reward is placed at its last token, but for the rewards that a
    workflow gave its turns, each of which is placed at the turn's last token. With the KL penalty in the
    reward, each token also pays for its divergence from the reference:

        r_t = -beta KL_t + turn reward_t + [t is last] (reward - sum of turn rewards)    A, R = GAE(r, V)
        A <- (A - mean) / (std + epsilon)            over the step's response tokens, as `advantage` says

        policy loss = mean of -min(r A, clip(r, 1 - low, 1 + high) A) [+ beta KL] - entropy_coefficient H
        critic loss = value_coefficient * mean of 1/2 max((V - R)^2, (V_old + clip(V - V_old, -c, c) -
        R)^2)

    Means run over all response tokens of a minibatch; the policy's as `aggregation` says.
    """

    needs_critic = True

    def __init__(self, entry: spec.PPOSpec) -> None:
        super().__init__(entry)
        self._spec = entry

    def value_objective(self) -> ValueObjective:
        return ValueObjective(
            self._spec.value_clip or None, self._spec.value_coefficient, self._spec.mask_truncated
        )

    def compute_advantages(
        self, batch: Batch, rewards: Tensor, penalty: Tensor
    ) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Return advantages, returns and old_values; reads the token column values too.

        Advantage metrics are computed before the normalisation.
        """
        mask, values = batch.token("loss_mask").bool(), batch.token("values")
        step_rewards = batch.token_columns.get(TURN_REWARDS)
        token_rewards = place_rewards(batch, rewards, penalty.to(values.dtype), step_rewards)

        discount = self._spec.gae
        estimated, returns = gae(
            token_rewards, values, mask, batch.cu_seqlens, discount.gamma, self._policy_lambda(batch)
        )
        critic_lambda = discount.lambda_ if discount.critic_lambda is None else discount.critic_lambda
        if discount.length_adaptive is not None or critic_lambda != discount.lambda_:
            _, returns = gae(token_rewards, values, mask, batch.cu_seqlens, discount.gamma, critic_lambda)
        group = batch.sequence("group")[batch.sequence_of_token]
        advantages = estimated.clone()
        advantages[mask] = normalize(estimated[mask], group[mask], self._spec.advantage)
        return {"advantages": advantages, "returns": returns, "old_values": values}, advantage_metrics(
            estimated[mask], returns[mask]
        ) | {
            "value/mean": float(masked_mean(values, mask)),
            "critic/explained_variance": explained_variance(values, returns, mask),
        }

    def _policy_lambda(self, batch: Batch) -> float | Tensor:
        """Return lambda of the advantages: one number, or one for each sequence [S]."""
        discount = self._spec.gae
        if discount.length_adaptive is None:
            return discount.lambda_
        return length_adaptive_lambda(
            batch.token("loss_mask"), batch.cu_seqlens, discount.length_adaptive.alpha
        )
