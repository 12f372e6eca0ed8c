"""Specs of group-relative algorithms, which compare the responses to one prompt with each other."""

from typing import ClassVar

from pydantic import Field

from kubealign.spec.algorithms.kl import KL, kl_in_loss
from kubealign.spec.algorithms.on_policy import ClippedRatioSpec, OnPolicySpec
from kubealign.spec.algorithms.policy_loss import (
    AdvantageCenter,
    AdvantageNormalization,
    AdvantageScale,
    Clip,
    DynamicSamplingSpec,
    LossAggregation,
    RatioLevel,
)
from kubealign.spec.base import MAX_INT32

_GROUP_NORMALIZATION = AdvantageNormalization(center=AdvantageCenter.GROUP, scale=AdvantageScale.GROUP)


class GroupRelativeSpec(OnPolicySpec):
    """Fields of algorithms that sample a group of responses for each prompt."""

    samples_per_prompt: int = Field(
        8, ge=2, le=MAX_INT32, description="Responses sampled for each prompt (group size)."
    )
    advantage: AdvantageNormalization = Field(
        _GROUP_NORMALIZATION, description="Normalisation of returns to advantages."
    )
    kl: KL = Field(
        kl_in_loss(0.0), description="KL penalty towards the reference policy. No penalty by default."
    )
    dynamic_sampling: DynamicSamplingSpec | None = Field(
        None, description="Replacement of groups whose samples all have the same reward; null: train on them."
    )


class GRPOSpec(GroupRelativeSpec, ClippedRatioSpec):
    """Group relative policy optimisation (Shao et al. 2024)."""

    implementation: ClassVar[str | None] = "kubealign_services.algorithms.online.grpo:GRPOAlgorithm"

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

    ratio_floor: float = Field(0.0, ge=0, description="Lower bound of the weight.")
    ratio_cap: float = Field(5.0, gt=1, description="Upper bound of the weight.")
