"""Specs of the online preference methods: online DPO and XPO."""

from enum import StrEnum
from typing import ClassVar, Self

from pydantic import Field, model_validator

from kubealign.spec.algorithms.online import OnlineSpec, require_whole_minibatches
from kubealign.spec.algorithms.policy_loss import DynamicSamplingSpec, OverlongPenalty
from kubealign.spec.base import MAX_INT32


class PreferenceLoss(StrEnum):
    """Loss of a pair of responses. Sigmoid: that of dpo. Ipo: that of ipo."""

    SIGMOID = "Sigmoid"
    IPO = "Ipo"


class SampledPairsSpec(OnlineSpec):
    """Fields of the algorithms that train on one pair of sampled responses for each prompt.

    No importance weights correct for older samples, which the loss does not assume to be the policy's own.
    """

    #: That of DPO, whose loss it is, and of TRL's OnlineDPOConfig and XPOConfig.
    learning_rate: ClassVar[float] = 5.0e-7

    minibatch_sequences: int | None = Field(
        None,
        ge=2,
        le=MAX_INT32,
        description="Sequences per optimiser step (minibatch size), two for each pair; must be even and "
        "divide 2 x promptsPerStep. null: one minibatch per step.",
    )
    epochs_per_step: int = Field(
        1, ge=1, le=MAX_INT32, description="Optimisation epochs over the pairs of each step."
    )
    max_staleness: int = Field(
        0,
        ge=0,
        le=1024,
        description="Asynchronous training: largest number of weight versions by which the weights that "
        "generated a sample may lag behind the trainer's (Noukhovitch et al. 2025).",
    )
    beta: float = Field(
        0.1,
        gt=0,
        description="Strength of the regularisation towards the reference policy: a larger beta keeps "
        "the policy closer.",
    )
    loss_type: PreferenceLoss = Field(PreferenceLoss.SIGMOID, description="Loss of a pair.")
    overlong: OverlongPenalty | None = Field(
        None,
        description="Penalty on responses near the length limit, subtracted before the pairs are selected; "
        "null: no penalty.",
    )

    @property
    def trained_sequences_per_step(self) -> int:
        """Sequences in pairs: two for each prompt."""
        return 2 * self.prompts_per_step

    @property
    def uses_reference(self) -> bool:
        """True."""
        return True

    @model_validator(mode="after")
    def _minibatches(self) -> Self:
        prompts = self.prompts_per_step
        text = f"must be even and divide 2 x promptsPerStep (2 x {prompts} = {2 * prompts})"
        require_whole_minibatches(self, text, unit=2)
        return self


class OnlineDPOSpec(SampledPairsSpec):
    """Online DPO (Guo et al. 2024): the best and the worst response to each prompt form a pair.

    Groups whose samples all have the same reward form no pair and have no gradient. No importance weights
    correct for older samples, which the loss does not assume to be the policy's own.
    """

    implementation: ClassVar[str | None] = (
        "kubealign_services.algorithms.online.online_dpo:OnlineDPOAlgorithm"
    )

    samples_per_prompt: int = Field(
        2,
        ge=2,
        le=MAX_INT32,
        description="Responses sampled for each prompt, of which the one with the highest and the one with "
        "the lowest reward are trained on.",
    )
    dynamic_sampling: DynamicSamplingSpec | None = Field(
        None,
        description="Replacement of groups whose samples all have the same reward; null: such groups stay "
        "in the step, without a gradient.",
    )


class XPOSpec(SampledPairsSpec):
    """XPO, exploratory preference optimisation (Xie et al. 2024): online DPO on pairs of a response of the
    policy and one of the reference, with an exploration bonus that lowers the probability of the latter.

    Two responses of the same reward form no pair; the bonus applies to them too. The rollout workers have the
    weights of the reference as well.
    """

    implementation: ClassVar[str | None] = "kubealign_services.algorithms.online.xpo:XPOAlgorithm"
    reference_sample: ClassVar[bool] = True

    samples_per_prompt: int = Field(
        1,
        ge=1,
        le=1,
        description="Responses of the policy to each prompt: 1. Another one is sampled from the reference.",
    )
    alpha: float = Field(
        1.0e-5,
        ge=0,
        description="Coefficient of the exploration bonus: the log-probability of the reference's response, "
        "in nats, in the loss. 0: no bonus.",
    )
