"""Spec of reward model training."""

from enum import StrEnum
from typing import ClassVar

from pydantic import Field

from kubealign.spec.algorithms.base import OfflineSpec, ResultKind
from kubealign.spec.base import SpecModel, SpecUnion


class ScorePooling(StrEnum):
    """LastToken: the score at the response's last token.

    ResponseSum: the sum of the scores over the response's tokens.
    """

    LAST_TOKEN = "LastToken"
    RESPONSE_SUM = "ResponseSum"


class BradleyTerry(SpecModel):
    """Bradley-Terry loss on preferences: -log sigmoid(score of chosen - score of rejected) (Bradley and Terry
    1952).
    """

    data: ClassVar[str] = "preferences"


class Regression(SpecModel):
    """Mean squared error between scores and ratings, with one score per rating column."""

    data: ClassVar[str] = "ratings"


class RewardObjective(SpecUnion):
    """Training objective of a reward model."""

    default_member = "bradley_terry"

    bradley_terry: BradleyTerry | None = Field(
        None, description="Learn from preferences: the chosen response should score higher."
    )
    regression: Regression | None = Field(
        None, description="Learn from ratings: the score should equal the rating."
    )


class RewardModelSpec(OfflineSpec):
    """Trains a language model with a scalar head, for use as a reward."""

    implementation: ClassVar[str | None] = (
        "kubealign_services.algorithms.offline.reward_model:RewardModelAlgorithm"
    )
    makes: ClassVar[ResultKind] = ResultKind.REWARD_MODEL
    #: InstructGPT's is 9e-6 (Ouyang et al. 2022).
    learning_rate: ClassVar[float] = 1.0e-5

    objective: RewardObjective = Field(
        RewardObjective(bradley_terry=BradleyTerry()), description="Training objective."
    )
    pooling: ScorePooling = Field(
        ScorePooling.LAST_TOKEN, description="Reduction of the token scores to the response's score."
    )
    language_model_coefficient: float = Field(
        0.0,
        ge=0,
        description="Weight of the language-modelling loss on the chosen response, which preserves the base "
        "model's knowledge.",
    )
    score_penalty: float = Field(
        0.0, ge=0, description="Weight of the mean squared score, which keeps scores near zero."
    )

    @property
    def data(self) -> str:
        """Member of spec.data that the objective learns from."""
        return str(self.objective.value.data)
