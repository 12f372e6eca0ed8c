"""KL penalty towards the reference policy."""

from enum import StrEnum

from pydantic import Field, model_validator

from kubealign.spec.base import SpecModel, field_errors, require_exactly_one


class KLPlacement(StrEnum):
    """Reward: the KL penalty is subtracted from the reward. Loss: the KL penalty is added to the loss."""

    REWARD = "Reward"
    LOSS = "Loss"


class KLEstimator(StrEnum):
    """Estimators of KL(policy || reference) from the policy's own samples (Schulman 2020), where r is the
    reference's probability of a token divided by the policy's. K1: -log r. K2: (log r)^2 / 2. K3: r - 1 -
    log r. Absolute: the size of log r, which is no estimate of the divergence (NeMo-Aligner's
    use_absolute_kl, verl's abs).
    """

    K1 = "K1"
    K2 = "K2"
    K3 = "K3"
    ABSOLUTE = "Absolute"


class FixedKL(SpecModel):
    """Constant KL coefficient."""

    coefficient: float = Field(
        0.05, ge=0, description="Weight of the KL penalty; 0: no penalty, and no reference is started."
    )


class AdaptiveKL(SpecModel):
    """KL coefficient that is adapted to reach a target divergence (Ziegler et al. 2019)."""

    initial_coefficient: float = Field(0.05, gt=0, description="Weight of the KL penalty at the first step.")
    target: float = Field(6.0, gt=0, description="Target divergence in nats per sequence.")
    horizon: float = Field(10_000.0, gt=0, description="Sequences over which the coefficient is adapted.")


class KL(SpecModel):
    """KL penalty towards the reference policy.

    Exactly one of fixed and adaptive must be set. A fixed coefficient of 0 needs no reference.
    """

    placement: KLPlacement = Field(KLPlacement.REWARD, description="Term to which the KL penalty is applied.")
    estimator: KLEstimator = Field(KLEstimator.K1, description="Estimator of the divergence.")
    corrected: bool | None = Field(
        None,
        description="Weight the estimate in the loss by the ratio of the policy to the one that sampled "
        "(DeepSeek-V3.2), so that its gradient is that of KL(policy || reference) for older samples too; "
        "placement Loss only. null: true with several optimiser steps per step or with maxStaleness above 0.",
    )
    fixed: FixedKL | None = Field(None, description="A constant coefficient.")
    adaptive: AdaptiveKL | None = Field(
        None, description="A coefficient that is adapted to reach a target divergence; placement Reward only."
    )

    @model_validator(mode="after")
    def _one(self) -> "KL":
        require_exactly_one(self, ["fixed", "adaptive"], example="fixed: {coefficient: 0.05}")
        return self

    @model_validator(mode="after")
    def _corrected_in_loss(self) -> "KL":
        if self.corrected and self.placement is not KLPlacement.LOSS:
            text = (
                "only a KL penalty in the loss has a gradient to correct: set placement to Loss, or remove it"
            )
            raise field_errors("KL", (("corrected",), self.corrected, text))
        return self

    @property
    def active(self) -> bool:
        """True if the coefficient is above 0, so that a reference is needed."""
        return self.adaptive is not None or (self.fixed is not None and self.fixed.coefficient > 0)


def kl_in_reward(coefficient: float) -> KL:
    """Return a KL penalty in the reward: estimator K1 with a fixed coefficient."""
    return KL(fixed=FixedKL(coefficient=coefficient))


def kl_in_loss(coefficient: float) -> KL:
    """Return a KL penalty in the loss: estimator K3 with a fixed coefficient."""
    return KL(placement=KLPlacement.LOSS, estimator=KLEstimator.K3, fixed=FixedKL(coefficient=coefficient))
