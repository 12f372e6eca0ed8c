"""REINFORCE and its kin: no critic, and a response is judged as a whole."""

from typing import ClassVar

from pydantic import Field, model_validator

from kubealign.spec.algorithms.kl import KL, KLPlacement, in_reward
from kubealign.spec.algorithms.on_policy import Clipped, OnPolicy
from kubealign.spec.algorithms.policy_loss import Center, LossAggregation, Normalization, RatioLevel, Scale
from kubealign.spec.base import MOST, incoherent


class Reinforce(OnPolicy):
    """REINFORCE (Williams 1992): the log-probability of a response, weighed by its reward."""

    aggregation: LossAggregation = Field(
        LossAggregation.SEQUENCE_SUM, description="How the tokens' losses become one number."
    )
    advantage: Normalization = Field(
        Normalization(center=Center.BATCH),
        description="How returns become advantages; center Batch: the step's mean is the baseline.",
    )


class ReinforcePlusPlus(Clipped):
    """REINFORCE++ (Hu et al. 2025): PPO's loss without its critic, advantages normalised over the whole step.
    With advantage.center Group it is the form with a baseline."""

    advantage: Normalization = Field(
        Normalization(center=Center.BATCH, scale=Scale.BATCH), description="How returns become advantages."
    )
    kl: KL = Field(in_reward(0.01), description="The pull towards the reference.")


class RLOO(Clipped):
    """REINFORCE leave-one-out (Ahmadian et al. 2024): the whole response is one action."""

    samples_per_prompt: int = Field(
        4,
        ge=2,
        le=MOST,
        description="Responses sampled to each prompt; the baseline of one is the mean of the others.",
    )
    ratio: RatioLevel = Field(RatioLevel.SEQUENCE, description="Of what the ratio is.")
    aggregation: LossAggregation = Field(
        LossAggregation.SEQUENCE_SUM, description="How the tokens' losses become one number."
    )
    advantage: Normalization = Field(
        Normalization(center=Center.LEAVE_ONE_OUT), description="How returns become advantages."
    )

    @model_validator(mode="after")
    def _kl_in_reward(self) -> "RLOO":
        if self.kl.active and self.kl.placement is not KLPlacement.REWARD:
            raise incoherent(
                "RLOO",
                (
                    ("kl", "placement"),
                    self.kl.placement,
                    "RLOO takes the KL from the sequence's reward: set Reward",
                ),
            )
        return self


class ReMax(OnPolicy):
    """ReMax (Li et al. 2023): REINFORCE with the reward of the likeliest response as baseline."""

    greedy_baseline: ClassVar[bool] = True

    aggregation: LossAggregation = Field(
        LossAggregation.SEQUENCE_SUM, description="How the tokens' losses become one number."
    )
