"""The pull towards the reference."""

from enum import StrEnum

from pydantic import Field, model_validator

from kubealign.spec.base import Spec, exactly_one


class KLPlacement(StrEnum):
    """Reward: the divergence is taken from the reward. Loss: it is added to the loss."""

    REWARD = "Reward"
    LOSS = "Loss"


class KLEstimator(StrEnum):
    """Schulman's estimators of KL(policy || reference) from the policy's own samples; r is the reference's
    probability of a token over the policy's. K1: -log r. K2: (log r)^2 / 2. K3: r - 1 - log r."""

    K1 = "K1"
    K2 = "K2"
    K3 = "K3"


class FixedKL(Spec):
    """A coefficient that stays as it is."""

    coefficient: float = Field(
        0.05, ge=0, description="Weight of the divergence; 0: none, and no reference is started."
    )


class AdaptiveKL(Spec):
    """The coefficient follows a target divergence (Ziegler et al. 2019)."""

    initial_coefficient: float = Field(0.05, gt=0, description="Weight of the divergence at the first step.")
    target: float = Field(6.0, gt=0, description="Divergence wanted, in nats per sequence.")
    horizon: float = Field(10_000.0, gt=0, description="Sequences over which the coefficient follows.")


class KL(Spec):
    """The pull towards the reference. Exactly one of fixed and adaptive must be set; fixed with
    coefficient 0 needs no reference."""

    placement: KLPlacement = Field(KLPlacement.REWARD, description="Where the divergence enters.")
    estimator: KLEstimator = Field(KLEstimator.K1, description="How it is estimated.")
    fixed: FixedKL | None = Field(None, description="A constant coefficient.")
    adaptive: AdaptiveKL | None = Field(
        None, description="A coefficient that steers the divergence; placement Reward only."
    )

    @model_validator(mode="after")
    def _one(self) -> "KL":
        exactly_one(self, ["fixed", "adaptive"], example="fixed: {coefficient: 0.05}")
        return self

    @property
    def active(self) -> bool:
        return self.adaptive is not None or (self.fixed is not None and self.fixed.coefficient > 0)


def in_reward(coefficient: float) -> KL:
    """K1 with a fixed coefficient, taken from the reward."""
    return KL(fixed=FixedKL(coefficient=coefficient))


def in_loss(coefficient: float) -> KL:
    """K3 with a fixed coefficient, added to the loss."""
    return KL(placement=KLPlacement.LOSS, estimator=KLEstimator.K3, fixed=FixedKL(coefficient=coefficient))
