"""Specs of group-relative algorithms, which compare the responses to one prompt with each other."""

from pydantic import Field

from kubealign.spec.algorithms.kl import KL, in_loss
from kubealign.spec.algorithms.on_policy import Clipped, OnPolicy
from kubealign.spec.algorithms.policy_loss import (
    Center,
    Clip,
    DynamicSampling,
    LossAggregation,
    Normalization,
    RatioLevel,
    Scale,
)
from kubealign.spec.base import MOST

_GROUP = Normalization(center=Center.GROUP, scale=Scale.GROUP)


class Grouped(OnPolicy):
    """Fields of algorithms that sample a group of responses for each prompt."""

    samples_per_prompt: int = Field(
        8, ge=2, le=MOST, description="Responses sampled for each prompt (group size)."
    )
    advantage: Normalization = Field(_GROUP, description="Normalisation of returns to advantages.")
    kl: KL = Field(
        in_loss(0.0), description="KL penalty towards the reference policy. No penalty by default."
    )
    dynamic_sampling: DynamicSampling | None = Field(
        None, description="Replacement of groups whose samples all have the same reward; null: train on them."
    )


class GRPO(Grouped, Clipped):
    """Group relative policy optimisation (Shao et al. 2024)."""

    aggregation: LossAggregation = Field(
        LossAggregation.SEQUENCE_MEAN, description="Aggregation of the per-token losses into one loss."
    )
    kl: KL = Field(in_loss(0.04), description="KL penalty towards the reference policy.")


class DrGRPO(Grouped, Clipped):
    """GRPO done right (Liu et al. 2025): no division by the group's standard deviation or by the response's
    length.
    """

    advantage: Normalization = Field(
        Normalization(center=Center.GROUP), description="Normalisation of returns to advantages."
    )
    aggregation: LossAggregation = Field(
        LossAggregation.FIXED_LENGTH, description="Aggregation of the per-token losses into one loss."
    )


class DAPO(Grouped, Clipped):
    """Decoupled clip and dynamic sampling policy optimisation (Yu et al. 2025)."""

    clip: Clip = Field(Clip(low=0.2, high=0.28), description="Clip range of the importance ratio.")
    dynamic_sampling: DynamicSampling = Field(
        DynamicSampling(), description="Replacement of groups whose samples all have the same reward."
    )


class GSPO(Grouped, Clipped):
    """Group sequence policy optimisation (Zheng et al. 2025).

    The importance ratio is that of the response: the geometric mean over its tokens.
    """

    clip: Clip = Field(Clip(low=3.0e-4, high=4.0e-4), description="Clip range of the importance ratio.")
    ratio: RatioLevel = Field(RatioLevel.SEQUENCE_MEAN, description="Level of the importance ratio.")
    aggregation: LossAggregation = Field(
        LossAggregation.SEQUENCE_MEAN, description="Aggregation of the per-token losses into one loss."
    )


class CISPO(Grouped):
    """Clipped importance-sampling policy optimisation (MiniMax 2025).

    The importance ratio is a clipped weight without gradient, so that every token keeps its gradient.
    """

    ratio_floor: float = Field(0.0, ge=0, description="Lower bound of the weight.")
    ratio_cap: float = Field(5.0, gt=1, description="Upper bound of the weight.")
