"""On-policy distillation: the policy's own responses, judged token by token by a teacher."""

from torch import Tensor

from kubealign_services.algorithms.advantages.statistics import advantage_metrics
from kubealign_services.algorithms.online.base import ClippedOnlineAlgorithm
from kubealign_services.batch.packed import Batch, sequence_sums


class OnPolicyDistillationAlgorithm(ClippedOnlineAlgorithm):
    """Agarwal et al. 2024, "On-Policy Distillation of Language Models".

    Gu et al. 2024, "MiniLLM"; Lu et al. 2025, "On-Policy Distillation". The reward of a token is the
    teacher's log-probability less the policy's, and the discount is 0:

        A_t = beta (log p_teacher(y_t | x, y_<t) - log p(y_t | x, y_<t)) + A_i

        loss = mean over all response tokens of -min(r_t A_t, clip(r_t, 1 - low, 1 + high) A_t)

    At each prefix that the policy has sampled, the expected gradient is beta times that of the next token's
    KL(policy || teacher). A_i is the advantage of the response's rewards, normalised as `advantage` says; 0
    without rewards.
    """

    def compute_advantages(
        self, batch: Batch, rewards: Tensor, penalty: Tensor
    ) -> tuple[dict[str, Tensor], dict[str, float]]:
        dtype, mask = batch.token("behaviour_logprobs").dtype, batch.token("loss_mask").bool()
        of_responses = self.compared(rewards, batch)[batch.sequence_of_token]
        advantages = (of_responses - penalty).to(dtype)
        advantages = advantages.where(mask, advantages.new_zeros(()))
        returns = rewards - sequence_sums(penalty, batch)
        return {"advantages": advantages}, advantage_metrics(advantages[mask], returns)
