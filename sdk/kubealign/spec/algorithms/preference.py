"""Specs of preference algorithms, which learn from given responses without sampling."""

from enum import StrEnum
from typing import ClassVar

from pydantic import Field

from kubealign.spec.algorithms.base import OfflineSpec


class PreferenceSpec(OfflineSpec):
    """Fields of algorithms that learn from pairs of a better and a worse response."""

    data: ClassVar[str] = "preferences"
    #: Zephyr's DPO (Tunstall et al. 2023).
    learning_rate: ClassVar[float] = 5.0e-7


class ReferencePreferenceSpec(PreferenceSpec):
    """Fields of preference algorithms with a reference policy."""

    beta: float = Field(
        0.1,
        gt=0,
        description="Strength of the regularisation towards the reference policy: a larger beta keeps "
        "the policy closer.",
    )

    @property
    def uses_reference(self) -> bool:
        """True."""
        return True


class LikelihoodReduction(StrEnum):
    """Mean: over the tokens of the chosen response. Sum: over them, as in NeMo-Aligner's sft_loss_weight."""

    MEAN = "Mean"
    SUM = "Sum"


class ChosenLikelihoodSpec(ReferencePreferenceSpec):
    """Fields of preference algorithms that can imitate the chosen responses as well."""

    nll_coefficient: float = Field(
        0.0,
        ge=0,
        description="Weight of the chosen responses' negative log-likelihood (Pang et al. 2024).",
    )
    nll_reduction: LikelihoodReduction = Field(
        LikelihoodReduction.MEAN,
        description="Reduction of the negative log-likelihood of a chosen response over its tokens.",
    )


class DPOSpec(ChosenLikelihoodSpec):
    """Direct preference optimisation (Rafailov et al. 2023)."""

    implementation: ClassVar[str | None] = "kubealign_services.algorithms.offline.dpo:DPOAlgorithm"

    label_smoothing: float = Field(
        0.0, ge=0, le=0.5, description="Assumed share of wrong preference labels (conservative DPO)."
    )


class IPOSpec(ReferencePreferenceSpec):
    """Identity preference optimisation (Azar et al. 2024): regression of the log-ratio margin to 1 / (2
    beta).
    """

    implementation: ClassVar[str | None] = "kubealign_services.algorithms.offline.ipo:IPOAlgorithm"


class RPODistance(StrEnum):
    """BackwardKL, ForwardKL: divergence between the Bernoulli distributions of the chosen response that the
    two gaps imply. Squared: squared difference of the gaps.
    """

    BACKWARD_KL = "BackwardKL"
    FORWARD_KL = "ForwardKL"
    SQUARED = "Squared"


class RPOSpec(ChosenLikelihoodSpec):
    """Reward-aware preference optimisation (Nvidia 2024, Nemotron-4).

    The policy's implicit reward gap is fitted to the gap between the columns chosenRating and
    rejectedRating.
    """

    implementation: ClassVar[str | None] = "kubealign_services.algorithms.offline.rpo:RPOAlgorithm"
    #: The rows hold a rating of each response.
    rated: ClassVar[bool] = True

    reward_scale: float = Field(1.0, gt=0, description="Scale of the rated gap (eta).")
    distance: RPODistance = Field(
        RPODistance.BACKWARD_KL, description="Distance between the policy's gap and the rated gap."
    )


class KTOSpec(OfflineSpec):
    """Kahneman-Tversky optimisation (Ethayarajh et al. 2024): unpaired good and bad responses."""

    implementation: ClassVar[str | None] = "kubealign_services.algorithms.offline.kto:KTOAlgorithm"
    data: ClassVar[str] = "unpaired"
    mismatched: ClassVar[bool] = True
    #: TRL's KTO script.
    learning_rate: ClassVar[float] = 5.0e-7

    beta: float = Field(
        0.1,
        gt=0,
        description="Strength of the regularisation towards the reference policy: a larger beta keeps "
        "the policy closer.",
    )
    desirable_weight: float = Field(1.0, gt=0, description="Weight of the losses of good responses.")
    undesirable_weight: float = Field(1.0, gt=0, description="Weight of the losses of bad responses.")

    @property
    def uses_reference(self) -> bool:
        """True."""
        return True


class ORPOSpec(PreferenceSpec):
    """Odds ratio preference optimisation (Hong et al. 2024): supervised and preference loss in one, without a
    reference.
    """

    implementation: ClassVar[str | None] = "kubealign_services.algorithms.offline.orpo:ORPOAlgorithm"
    #: Hong et al. 2024: the supervised part of the loss needs a higher rate than DPO.
    learning_rate: ClassVar[float] = 8.0e-6

    coefficient: float = Field(0.1, gt=0, description="Weight of the odds ratio loss (lambda).")


class SimPOSpec(PreferenceSpec):
    """Simple preference optimisation (Meng et al. 2024): length-normalised log-probabilities, without a
    reference.
    """

    implementation: ClassVar[str | None] = "kubealign_services.algorithms.offline.simpo:SimPOAlgorithm"

    beta: float = Field(2.0, gt=0, description="Scale of the mean log-probabilities.")
    margin: float = Field(
        1.0, ge=0, description="Target margin between the chosen and the rejected response (gamma)."
    )
