"""What every algorithm that learns from its own samples has."""

from typing import ClassVar

from pydantic import Field, model_validator

from kubealign.spec.algorithms.kl import KL, FixedKL, KLPlacement
from kubealign.spec.algorithms.method import Method, Use
from kubealign.spec.algorithms.policy_loss import (
    Center,
    Clip,
    Importance,
    LossAggregation,
    Normalization,
    OverlongPenalty,
    RatioLevel,
)
from kubealign.spec.base import MOST, incoherent


class OnPolicy(Method):
    """Samples, rewards, advantages, and a policy loss."""

    online: ClassVar[bool] = True
    samples: ClassVar[bool] = True
    rewards: ClassVar[Use] = Use.NEEDED
    data: ClassVar[str] = "prompts"
    #: For each prompt one more response of the likeliest tokens, which is compared with and not learned.
    greedy_baseline: ClassVar[bool] = False

    prompts_per_step: int = Field(64, ge=1, le=MOST, description="Prompts of one step.")
    samples_per_prompt: int = Field(1, ge=1, le=MOST, description="Responses sampled to each prompt.")
    minibatch_sequences: int | None = Field(
        None,
        ge=1,
        le=MOST,
        description="Sequences of one optimiser step; must divide those of a step. null: all of a step.",
    )
    epochs_per_step: int = Field(
        1, ge=1, le=MOST, description="Times that a step's sequences are gone through."
    )
    max_staleness: int = Field(
        0,
        ge=0,
        le=1024,
        description="Asynchronous training: versions that the weights which made a sample may be behind "
        "those that train on it. Above 0 the loss is decoupled (Fu et al. 2025, AReaL): the ratio is that to "
        "the step's own weights, and importance weighs what older ones made.",
    )
    advantage: Normalization = Field(
        Normalization(center=Center.NONE), description="How returns become advantages."
    )
    aggregation: LossAggregation = Field(
        LossAggregation.TOKEN_MEAN, description="How the tokens' losses become one number."
    )
    kl: KL = Field(KL(fixed=FixedKL()), description="The pull towards the reference.")
    entropy_coefficient: float = Field(
        0.0, ge=0, description="Bonus on the mean entropy of the policy over response tokens."
    )
    importance: Importance | None = Field(
        None,
        description="Weights that correct what the rollout engine computes otherwise than the trainer. null: "
        "none; with maxStaleness above 0 those of the decoupled loss, by token, at most 5.",
    )
    overlong: OverlongPenalty | None = Field(None, description="A penalty near the length limit; null: none.")
    mask_truncated: bool = Field(
        False, description="Responses that did not end within maxTokens count for nothing in the loss."
    )

    @property
    def sequences_per_step(self) -> int:
        return self.prompts_per_step * self.samples_per_prompt

    @property
    def updates_per_step(self) -> int:
        return self.epochs_per_step * (
            self.sequences_per_step // (self.minibatch_sequences or self.sequences_per_step)
        )

    @property
    def uses_reference(self) -> bool:
        return self.kl.active

    @property
    def effective_importance(self) -> Importance | None:
        """The correction that is made; None: none."""
        return self.importance or (Importance() if self.max_staleness > 0 else None)

    @model_validator(mode="after")
    def _minibatches(self) -> "OnPolicy":
        size, total = self.minibatch_sequences, self.sequences_per_step
        if size is not None and total % size != 0:
            nearest = max(divisor for divisor in range(1, min(size, total) + 1) if total % divisor == 0)
            raise incoherent(
                type(self).__name__,
                (
                    ("minibatchSequences",),
                    size,
                    f"must divide promptsPerStep x samplesPerPrompt ({self.prompts_per_step} x "
                    f"{self.samples_per_prompt} = {total}), such as {nearest}",
                ),
            )
        return self

    @model_validator(mode="after")
    def _samples_to_compare(self) -> "OnPolicy":
        if self.advantage.center in (Center.GROUP, Center.LEAVE_ONE_OUT) and self.samples_per_prompt < 2:
            raise incoherent(
                type(self).__name__,
                (
                    ("advantage", "center"),
                    self.advantage.center,
                    "compares a prompt's samples: set samplesPerPrompt to at least 2, or center to Batch",
                ),
            )
        return self

    @model_validator(mode="after")
    def _adaptive_in_reward(self) -> "OnPolicy":
        if self.kl.adaptive is not None and self.kl.placement is KLPlacement.LOSS:
            raise incoherent(
                type(self).__name__,
                (
                    ("kl", "adaptive"),
                    self.kl.adaptive,
                    "an adaptive coefficient steers KL in the reward: set placement to Reward, or use fixed",
                ),
            )
        return self


class Clipped(OnPolicy):
    """With a clipped ratio."""

    clip: Clip = Field(Clip(), description="The ratio's clip range.")
    ratio: RatioLevel = Field(RatioLevel.TOKEN, description="Of what the ratio is.")
