"""On-policy distillation: the policy's own responses, judged token by token by a teacher."""

from torch import Tensor

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.advantages.statistics import advantage_metrics
from kubealign_services.algorithms.contract import LossTerms, ModelOutputs, Objective
from kubealign_services.algorithms.losses.aggregation import loss_token_mask
from kubealign_services.algorithms.losses.loss_weights import token_mean_shares
from kubealign_services.algorithms.losses.teacher_divergence import distribution_terms
from kubealign_services.algorithms.online.base import ClippedOnlineAlgorithm
from kubealign_services.batch.packed import Batch, sequence_sums

_SHARES = "distribution_shares"


class OnPolicyDistillationAlgorithm(ClippedOnlineAlgorithm):
    """Agarwal et al. 2024, "On-Policy Distillation of Language Models".

    Gu et al. 2024, "MiniLLM"; Lu et al. 2025, "On-Policy Distillation". The reward of a token is the
    teacher's log-probability less the policy's, and the discount is 0:

        A_t = beta (log p_teacher(y_t | x, y_<t) - log p(y_t | x, y_<t)) + A_i

        loss = mean over all response tokens of -min(r_t A_t, clip(r_t, 1 - low, 1 + high) A_t)

    At each prefix that the policy has sampled, the expected gradient is beta times that of the next token's
    KL(policy || teacher). A_i is the advantage of the response's rewards, normalised as `advantage` says; 0
    without rewards.

    With `distribution` the advantage is that of the rewards alone, A_t = A_i, and the loss that of
    `DistributionObjective`.
    """

    def __init__(self, entry: spec.OnPolicyDistillationSpec) -> None:
        assert entry.kl.fixed is not None
        self._distribution, self._weight = entry.distribution, entry.kl.fixed.coefficient
        if entry.distribution is not None:
            entry = entry.model_copy(update={"kl": spec.KL(fixed=spec.FixedKL(coefficient=0.0))})
        super().__init__(entry)

    def policy_objective(self) -> Objective:
        policy = super().policy_objective()
        if self._distribution is None:
            return policy
        mask_truncated = self._entry.mask_truncated
        return DistributionObjective(policy, self._distribution, self._weight, mask_truncated)

    def compute_advantages(
        self, batch: Batch, rewards: Tensor, penalty: Tensor
    ) -> tuple[dict[str, Tensor], dict[str, float]]:
        dtype, mask = batch.token("behaviour_logprobs").dtype, batch.token("loss_mask").bool()
        of_responses = self.compared(rewards, batch)[batch.sequence_of_token]
        advantages = (of_responses - penalty).to(dtype)
        advantages = advantages.where(mask, advantages.new_zeros(()))
        returns = rewards - sequence_sums(penalty, batch)
        return {"advantages": advantages}, advantage_metrics(advantages[mask], returns)


class DistributionObjective:
    """Generalised knowledge distillation on the policy's own samples (Agarwal et al. 2024, GKD).

        loss = policy loss(A_i) + beta T^2 (mean over response tokens of D)

    D is a divergence between teacher and policy over the teacher's candidates, see
    `algorithms.offline.distillation`. The samples only choose the prefixes: no gradient passes through the
    sampling, as in GKD.

    Reads the columns of the policy loss and the token columns candidates [T, K] and candidate_logprobs [T, K]
    (the teacher's).

    Args:
        policy: Loss of the rewards' advantages.
        weight: beta.
        mask_truncated: Leave truncated responses out.
    """

    unit = 1

    def __init__(
        self, policy: Objective, distribution: spec.TeacherDistribution, weight: float, mask_truncated: bool
    ) -> None:
        self._policy = policy
        self._distribution = distribution
        self._weight = weight
        self._mask_truncated = mask_truncated
        self.outputs = policy.outputs | {"candidate_logprobs"}

    def prepare(self, minibatch: Batch) -> None:
        self._policy.prepare(minibatch)
        minibatch.token_columns[_SHARES] = token_mean_shares(loss_token_mask(minibatch, self._mask_truncated))

    def loss(self, outputs: ModelOutputs, microbatch: Batch) -> LossTerms:
        policy = self._policy.loss(outputs, microbatch)
        teacher = distribution_terms(outputs, microbatch, _SHARES, self._distribution)
        sums = policy.sums | teacher.sums | {"distillation/loss": teacher.loss.detach()}
        return LossTerms(policy.loss + self._weight * teacher.loss, sums, policy.maxima)
