"""Learning from preferences without sampling."""

from enum import StrEnum
from typing import ClassVar

from pydantic import Field

from kubealign.spec.algorithms.method import Offline


class Preference(Offline):
    """Which of two responses is better."""

    data: ClassVar[str] = "preferences"


class WithReference(Preference):
    """With a reference that the policy is held to."""

    beta: float = Field(0.1, gt=0, description="How strongly the policy is held to the reference.")

    @property
    def uses_reference(self) -> bool:
        return True


class DPO(WithReference):
    """Direct preference optimisation (Rafailov et al. 2023)."""

    label_smoothing: float = Field(
        0.0, ge=0, le=0.5, description="Share of the preferences taken to be wrong (conservative DPO)."
    )
    nll_coefficient: float = Field(
        0.0,
        ge=0,
        description="Weight of the chosen responses' mean negative log-likelihood (Pang et al. 2024).",
    )


class IPO(WithReference):
    """Identity preference optimisation (Azar et al. 2024): the margin is led to 1 / (2 beta)."""


class RPODistance(StrEnum):
    """How the policy's reward gap is compared with the given one. BackwardKL and ForwardKL: as the
    probabilities that they give the chosen. Squared: as they are."""

    BACKWARD_KL = "BackwardKL"
    FORWARD_KL = "ForwardKL"
    SQUARED = "Squared"


class RPO(WithReference):
    """Reward-aware preference optimisation (Nvidia 2024, Nemotron-4): the policy's reward gap is led to the
    one that the rows hold, in their columns chosenRating and rejectedRating."""

    #: Its rows hold how good each response is.
    rated: ClassVar[bool] = True

    reward_scale: float = Field(1.0, gt=0, description="What the given gap is multiplied with (eta).")
    distance: RPODistance = Field(RPODistance.BACKWARD_KL, description="How the gaps are compared.")


class KTO(Offline):
    """Kahneman-Tversky optimisation (Ethayarajh et al. 2024): from single responses, good or bad."""

    data: ClassVar[str] = "unpaired"
    mismatched: ClassVar[bool] = True

    beta: float = Field(0.1, gt=0, description="How strongly the policy is held to the reference.")
    desirable_weight: float = Field(1.0, gt=0, description="Weight of the good responses' losses.")
    undesirable_weight: float = Field(1.0, gt=0, description="Weight of the bad responses' losses.")

    @property
    def uses_reference(self) -> bool:
        return True


class ORPO(Preference):
    """Odds ratio preference optimisation (Hong et al. 2024): imitation and preference in one,
    without a reference."""

    coefficient: float = Field(0.1, gt=0, description="Weight of the odds ratio's loss (lambda).")


class SimPO(Preference):
    """Simple preference optimisation (Meng et al. 2024): mean log-probabilities, no reference."""

    beta: float = Field(2.0, gt=0, description="Scale of the mean log-probabilities.")
    margin: float = Field(1.0, ge=0, description="By how much the chosen is to be ahead (gamma).")
