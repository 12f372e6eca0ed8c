"""Learning from how a response compares with the others to its prompt."""

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
    """Several samples of each prompt, compared with one another."""

    samples_per_prompt: int = Field(
        8, ge=2, le=MOST, description="Responses sampled to each prompt; each is compared with the others."
    )
    advantage: Normalization = Field(_GROUP, description="How returns become advantages.")
    kl: KL = Field(in_loss(0.0), description="The pull towards the reference; none by default.")
    dynamic_sampling: DynamicSampling | None = Field(
        None, description="Replace groups whose samples all have the same reward; null: train on them."
    )


class GRPO(Grouped, Clipped):
    """Group relative policy optimisation (Shao et al. 2024)."""

    aggregation: LossAggregation = Field(
        LossAggregation.SEQUENCE_MEAN, description="How the tokens' losses become one number."
    )
    kl: KL = Field(in_loss(0.04), description="The pull towards the reference.")


class DrGRPO(Grouped, Clipped):
    """GRPO done right (Liu et al. 2025): no division by the group's deviation nor by a response's length."""

    advantage: Normalization = Field(
        Normalization(center=Center.GROUP), description="How returns become advantages."
    )
    aggregation: LossAggregation = Field(
        LossAggregation.FIXED_LENGTH, description="How the tokens' losses become one number."
    )


class DAPO(Grouped, Clipped):
    """Decoupled clip and dynamic sampling policy optimisation (Yu et al. 2025)."""

    clip: Clip = Field(Clip(low=0.2, high=0.28), description="The ratio's clip range.")
    dynamic_sampling: DynamicSampling = Field(
        DynamicSampling(), description="Replace groups whose samples all have the same reward."
    )


class GSPO(Grouped, Clipped):
    """Group sequence policy optimisation (Zheng et al. 2025): the ratio is of the response, as the geometric
    mean over its tokens."""

    clip: Clip = Field(Clip(low=3.0e-4, high=4.0e-4), description="The ratio's clip range.")
    ratio: RatioLevel = Field(RatioLevel.SEQUENCE_MEAN, description="Of what the ratio is.")
    aggregation: LossAggregation = Field(
        LossAggregation.SEQUENCE_MEAN, description="How the tokens' losses become one number."
    )


class CISPO(Grouped):
    """Clipped importance-sampling policy optimisation (MiniMax 2025): the ratio is a bounded weight, and
    every token keeps its gradient."""

    ratio_floor: float = Field(0.0, ge=0, description="The weight is at least this.")
    ratio_cap: float = Field(5.0, gt=1, description="The weight is at most this.")
