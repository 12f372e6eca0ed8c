"""Spec of on-policy distillation."""

from typing import ClassVar

from pydantic import Field, model_validator

from kubealign.spec.algorithms.base import Requirement
from kubealign.spec.algorithms.kl import KL, KLEstimator, KLPlacement, kl_in_reward
from kubealign.spec.algorithms.on_policy import ClippedRatioSpec
from kubealign.spec.base import field_errors

#: The only KL penalty whose value at a token is the teacher's judgement of that token.
KL_REMEDY = "each token's advantage is log p_teacher - log p: set placement Reward, estimator K1 and fixed"


class OnPolicyDistillationSpec(ClippedRatioSpec):
    """On-policy distillation (Agarwal et al. 2024; Gu et al. 2024; Lu et al. 2025): the policy samples, and a
    teacher judges each of its tokens.

    The teacher is the reference: `reference.model` names it. Rewards may be added.
    """

    implementation: ClassVar[str | None] = (
        "kubealign_services.algorithms.online.on_policy_distillation:OnPolicyDistillationAlgorithm"
    )
    rewards: ClassVar[Requirement] = Requirement.ALLOWED
    token_advantages: ClassVar[bool] = True
    reference_model: ClassVar[Requirement] = Requirement.NEEDED

    kl: KL = Field(
        kl_in_reward(1.0),
        description="Divergence from the teacher. fixed.coefficient is the weight of the teacher's judgement "
        "beside the rewards; placement must be Reward and estimator K1.",
    )

    @model_validator(mode="after")
    def _divergence_of_tokens(self) -> "OnPolicyDistillationSpec":
        is_of_tokens = self.kl.placement is KLPlacement.REWARD and self.kl.estimator is KLEstimator.K1
        if not is_of_tokens or self.kl.fixed is None or self.kl.fixed.coefficient == 0:
            raise field_errors("OnPolicyDistillation", (("kl",), self.kl, KL_REMEDY))
        return self
