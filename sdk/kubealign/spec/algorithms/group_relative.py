"""Specs of group-relative algorithms, which compare the responses to one prompt with each other."""

from typing import ClassVar

from pydantic import Field, model_validator

from kubealign.spec.algorithms.kl import KL, KLPlacement, kl_in_loss
from kubealign.spec.algorithms.on_policy import ClippedRatioSpec, StepCreditSpec, require_token_ratio
from kubealign.spec.algorithms.policy_loss import (
    AdvantageCenter,
    AdvantageNormalization,
    AdvantageScale,
    Clip,
    DynamicSamplingSpec,
    LossAggregation,
    RatioLevel,
    RewardAggregation,
)
from kubealign.spec.base import MAX_INT32, field_errors

_GROUP_NORMALIZATION = AdvantageNormalization(center=AdvantageCenter.GROUP, scale=AdvantageScale.GROUP)


class GroupRelativeSpec(StepCreditSpec):
    """Fields of algorithms that sample a group of responses for each prompt."""

    token_baseline: ClassVar[bool] = True

    samples_per_prompt: int = Field(
        8, ge=2, le=MAX_INT32, description="Responses sampled for each prompt (group size)."
    )
    advantage: AdvantageNormalization = Field(
        _GROUP_NORMALIZATION, description="Normalisation of returns to advantages."
    )
    kl: KL = Field(
        kl_in_loss(0.0), description="KL penalty towards the reference policy. No penalty by default."
    )
    reward_aggregation: RewardAggregation = Field(
        RewardAggregation.SUM_THEN_NORMALIZE,
        description="Order of summing several rewards and normalising them; NormalizeThenSum keeps a reward "
        "of small variance from being drowned by the others.",
    )
    dynamic_sampling: DynamicSamplingSpec | None = Field(
        None, description="Replacement of groups whose samples all have the same reward; null: train on them."
    )

    @model_validator(mode="after")
    def _steps_of_groups(self) -> "GroupRelativeSpec":
        """Refuse credit for steps with settings that are defined for whole responses alone."""
        norm, name = self.advantage, type(self).__name__
        if not self.credits_steps:
            return self
        if norm.center is not AdvantageCenter.GROUP:
            text = "credit Steps compares the steps of a group with their mean: set Group"
            raise field_errors(name, (("advantage", "center"), norm.center, text))
        if norm.scale not in (AdvantageScale.NONE, AdvantageScale.GROUP):
            text = "credit Steps divides by the deviation of a group's steps: set Group or None"
            raise field_errors(name, (("advantage", "scale"), norm.scale, text))
        if norm.pass_at_k is not None:
            text = "compares whole responses, and credit Steps gives each step its advantage: remove it"
            raise field_errors(name, (("advantage", "passAtK"), norm.pass_at_k, text))
        if self.reward_aggregation is RewardAggregation.NORMALIZE_THEN_SUM:
            text = "credit Steps normalises the steps of the sum of the rewards: set SumThenNormalize"
            raise field_errors(name, (("rewardAggregation",), self.reward_aggregation, text))
        if isinstance(self, ClippedRatioSpec):
            require_token_ratio(self)
        return self

    @model_validator(mode="after")
    def _rewards_alone(self) -> "GroupRelativeSpec":
        """Refuse parts of the return that are not a reward where each reward is normalised by itself."""
        if self.reward_aggregation is RewardAggregation.NORMALIZE_THEN_SUM:
            if self.advantage.center is AdvantageCenter.OPTIMAL_TOKEN:
                text = "OptimalToken has one baseline for the sum of the rewards: set SumThenNormalize"
                problem = (("rewardAggregation",), self.reward_aggregation, text)
                raise field_errors(type(self).__name__, problem)
            in_reward = self.kl.active and self.kl.placement is KLPlacement.REWARD
            if in_reward or self.overlong is not None:
                text = (
                    "overlong and a KL penalty in the reward have no scale of their own: remove them, or set "
                    "SumThenNormalize"
                )
                problem = (("rewardAggregation",), self.reward_aggregation, text)
                raise field_errors(type(self).__name__, problem)
        return self


class GRPOSpec(GroupRelativeSpec, ClippedRatioSpec):
    """Group relative policy optimisation (Shao et al. 2024, DeepSeekMath).

    By default without the paper's KL penalty and with the mean over tokens, as in DAPO (Yu et al. 2025), TRL
    and verl. deepseekMath has the paper's settings.
    """

    implementation: ClassVar[str | None] = "kubealign_services.algorithms.online.grpo:GRPOAlgorithm"


class DeepSeekMathSpec(GroupRelativeSpec, ClippedRatioSpec):
    """GRPO with the settings of its paper (Shao et al. 2024, DeepSeekMath, section 4.2): 64 responses to each
    prompt, the mean over each response's tokens, and a KL penalty of 0.04 in the loss.
    """

    implementation: ClassVar[str | None] = (
        "kubealign_services.algorithms.online.deepseek_math:DeepSeekMathAlgorithm"
    )

    samples_per_prompt: int = Field(
        64, ge=2, le=MAX_INT32, description="Responses sampled for each prompt (group size)."
    )
    aggregation: LossAggregation = Field(
        LossAggregation.SEQUENCE_MEAN, description="Aggregation of the per-token losses into one loss."
    )
    kl: KL = Field(kl_in_loss(0.04), description="KL penalty towards the reference policy.")


class DrGRPOSpec(GroupRelativeSpec, ClippedRatioSpec):
    """GRPO done right (Liu et al. 2025): no division by the group's standard deviation or by the response's
    length.
    """

    implementation: ClassVar[str | None] = "kubealign_services.algorithms.online.dr_grpo:DrGRPOAlgorithm"

    advantage: AdvantageNormalization = Field(
        AdvantageNormalization(center=AdvantageCenter.GROUP),
        description="Normalisation of returns to advantages.",
    )
    aggregation: LossAggregation = Field(
        LossAggregation.FIXED_LENGTH, description="Aggregation of the per-token losses into one loss."
    )


class DAPOSpec(GroupRelativeSpec, ClippedRatioSpec):
    """Decoupled clip and dynamic sampling policy optimisation (Yu et al. 2025)."""

    implementation: ClassVar[str | None] = "kubealign_services.algorithms.online.dapo:DAPOAlgorithm"

    clip: Clip = Field(Clip(low=0.2, high=0.28), description="Clip range of the importance ratio.")
    dynamic_sampling: DynamicSamplingSpec = Field(
        DynamicSamplingSpec(), description="Replacement of groups whose samples all have the same reward."
    )


class GSPOSpec(GroupRelativeSpec, ClippedRatioSpec):
    """Group sequence policy optimisation (Zheng et al. 2025).

    The importance ratio is that of the response: the geometric mean over its tokens.
    """

    implementation: ClassVar[str | None] = "kubealign_services.algorithms.online.gspo:GSPOAlgorithm"

    clip: Clip = Field(Clip(low=3.0e-4, high=4.0e-4), description="Clip range of the importance ratio.")
    ratio: RatioLevel = Field(RatioLevel.SEQUENCE_MEAN, description="Level of the importance ratio.")
    aggregation: LossAggregation = Field(
        LossAggregation.SEQUENCE_MEAN, description="Aggregation of the per-token losses into one loss."
    )


class CISPOSpec(GroupRelativeSpec):
    """Clipped importance-sampling policy optimisation (MiniMax 2025).

    The importance ratio is a clipped weight without gradient, so that every token keeps its gradient.
    """

    implementation: ClassVar[str | None] = "kubealign_services.algorithms.online.cispo:CISPOAlgorithm"
    bounds_ratio: ClassVar[bool] = True

    ratio_floor: float = Field(0.0, ge=0, description="Lower bound of the weight.")
    ratio_cap: float = Field(5.0, gt=1, description="Upper bound of the weight.")
