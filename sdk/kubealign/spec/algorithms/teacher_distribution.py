"""Fields of algorithms that learn a teacher's distribution over its most likely tokens."""

from enum import StrEnum

from pydantic import Field, model_validator

from kubealign.spec.base import SpecModel, field_errors

#: beta weights the two parts of the Jensen-Shannon divergence; the others have one part.
BETA_REMEDY = "weights the parts of JensenShannon: set divergence to it, or remove beta"
#: TRL's GKDConfig.
DEFAULT_BETA = 0.5


class DistillationDivergence(StrEnum):
    """Forward: KL(teacher || student). Reverse: KL(student || teacher). JensenShannon: beta KL(teacher || m)
    + (1 - beta) KL(student || m) with m = beta teacher + (1 - beta) student.
    """

    FORWARD = "Forward"
    REVERSE = "Reverse"
    JENSEN_SHANNON = "JensenShannon"


class TeacherDistribution(SpecModel):
    """The teacher's most likely tokens, and the divergence between teacher and student over them."""

    candidates: int = Field(
        32,
        ge=1,
        le=4096,
        description="Top-K: number of the teacher's most likely tokens per position whose probabilities are "
        "learned; all other tokens share the remaining probability.",
    )
    temperature: float = Field(1.0, gt=0, description="Softmax temperature of both distributions.")
    divergence: DistillationDivergence = Field(
        DistillationDivergence.FORWARD,
        description="Divergence between teacher and student that is minimised.",
    )
    beta: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Weight of the teacher in divergence JensenShannon (Agarwal et al. 2024, GKD); null: "
        "0.5. Near 0 and near 1 the gradient vanishes in proportion to beta and 1 - beta.",
    )

    @property
    def effective_beta(self) -> float:
        """Weight of the teacher in the Jensen-Shannon divergence."""
        return DEFAULT_BETA if self.beta is None else self.beta

    @model_validator(mode="after")
    def _beta_of_jensen_shannon(self) -> "TeacherDistribution":
        if self.beta is not None and self.divergence is not DistillationDivergence.JENSEN_SHANNON:
            raise field_errors(type(self).__name__, (("beta",), self.beta, BETA_REMEDY))
        return self
