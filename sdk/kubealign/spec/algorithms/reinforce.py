"""Specs of REINFORCE and its variants, which have no critic and assign one reward to the whole response."""

from typing import ClassVar

from pydantic import Field, model_validator

from kubealign.spec.algorithms.kl import KL, KLPlacement, kl_in_reward
from kubealign.spec.algorithms.on_policy import (
    ClippedRatioSpec,
    OnPolicySpec,
    StepCreditSpec,
    require_token_ratio,
)
from kubealign.spec.algorithms.policy_loss import (
    AdvantageCenter,
    AdvantageNormalization,
    AdvantageScale,
    LossAggregation,
    RatioLevel,
)
from kubealign.spec.base import MAX_INT32, field_errors
from kubealign.spec.sections.training import Fraction


class ReinforceSpec(OnPolicySpec):
    """REINFORCE (Williams 1992): the policy gradient of the response's log-probability, weighted by its
    reward.
    """

    implementation: ClassVar[str | None] = "kubealign_services.algorithms.online.reinforce:ReinforceAlgorithm"

    aggregation: LossAggregation = Field(
        LossAggregation.SEQUENCE_SUM, description="Aggregation of the per-token losses into one loss."
    )
    advantage: AdvantageNormalization = Field(
        AdvantageNormalization(center=AdvantageCenter.BATCH),
        description="Normalisation of returns to advantages. Center Batch: the step's mean reward is the "
        "baseline.",
    )


class ReinforcePlusPlusSpec(StepCreditSpec, ClippedRatioSpec):
    """REINFORCE++ (Hu et al. 2025): PPO's loss without a critic, with advantages normalised over the step.

    With advantage.center Group this is the variant with a baseline.
    """

    implementation: ClassVar[str | None] = (
        "kubealign_services.algorithms.online.reinforce_plus_plus:ReinforcePlusPlusAlgorithm"
    )
    token_advantages: ClassVar[bool] = True

    advantage: AdvantageNormalization = Field(
        AdvantageNormalization(center=AdvantageCenter.BATCH, scale=AdvantageScale.BATCH),
        description="Normalisation of returns to advantages.",
    )
    kl: KL = Field(kl_in_reward(0.01), description="KL penalty towards the reference policy.")
    gamma: Fraction = Field(1.0, description="Discount factor per token.")

    @model_validator(mode="after")
    def _returns_of_steps(self) -> "ReinforcePlusPlusSpec":
        """Refuse credit for steps with settings that are defined for whole responses alone."""
        if not self.credits_steps:
            return self
        if self.advantage.center in (AdvantageCenter.GROUP, AdvantageCenter.LEAVE_ONE_OUT):
            text = "compares whole responses, and credit Steps gives each token its return: set Batch or None"
            raise field_errors(type(self).__name__, (("advantage", "center"), self.advantage.center, text))
        require_token_ratio(self)
        return self


class RLOOSpec(ClippedRatioSpec):
    """REINFORCE leave-one-out (Ahmadian et al. 2024): the whole response is one action."""

    implementation: ClassVar[str | None] = "kubealign_services.algorithms.online.rloo:RLOOAlgorithm"

    samples_per_prompt: int = Field(
        4,
        ge=2,
        le=MAX_INT32,
        description="Responses sampled for each prompt; the baseline of one response is the mean reward "
        "of the others.",
    )
    ratio: RatioLevel = Field(RatioLevel.SEQUENCE, description="Level of the importance ratio.")
    aggregation: LossAggregation = Field(
        LossAggregation.SEQUENCE_SUM, description="Aggregation of the per-token losses into one loss."
    )
    advantage: AdvantageNormalization = Field(
        AdvantageNormalization(center=AdvantageCenter.LEAVE_ONE_OUT),
        description="Normalisation of returns to advantages.",
    )

    @model_validator(mode="after")
    def _kl_in_reward(self) -> "RLOOSpec":
        if self.kl.active and self.kl.placement is not KLPlacement.REWARD:
            raise field_errors(
                "RLOO",
                (
                    ("kl", "placement"),
                    self.kl.placement,
                    "RLOO subtracts the KL penalty from the sequence's reward: set Reward",
                ),
            )
        return self


class ReMaxSpec(OnPolicySpec):
    """ReMax (Li et al. 2023): REINFORCE with the reward of the greedy response as baseline."""

    implementation: ClassVar[str | None] = "kubealign_services.algorithms.online.remax:ReMaxAlgorithm"
    greedy_baseline: ClassVar[bool] = True

    aggregation: LossAggregation = Field(
        LossAggregation.SEQUENCE_SUM, description="Aggregation of the per-token losses into one loss."
    )
