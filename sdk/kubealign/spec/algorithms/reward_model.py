"""Spec of reward model training."""

from enum import StrEnum
from typing import ClassVar

from pydantic import Field, model_validator

from kubealign.spec.algorithms.base import OfflineSpec, ResultKind
from kubealign.spec.base import SpecModel, SpecUnion, field_errors


class ScorePooling(StrEnum):
    """LastToken: the score at the response's last token.

    ResponseSum: the sum of the scores over the response's tokens.
    """

    LAST_TOKEN = "LastToken"
    RESPONSE_SUM = "ResponseSum"


#: Pooling in the config of a process reward model, whose scores are not pooled.
STEPS_POOLING = "Steps"

#: Message for `pooling` of a process reward model.
STEPS_ARE_NOT_POOLED = "stepClassification scores each step at its last token: write LastToken"


class BradleyTerry(SpecModel):
    """Bradley-Terry loss on preferences: -log sigmoid(score of chosen - score of rejected) (Bradley and Terry
    1952).
    """

    data: ClassVar[str] = "preferences"


class Regression(SpecModel):
    """Mean squared error between scores and ratings, with one score per rating column."""

    data: ClassVar[str] = "ratings"


class StepClassification(SpecModel):
    """Binary cross-entropy between the scores of steps, at the last token of each, and their labels: 1 for a
    right step, 0 for a wrong one, or a probability (Lightman et al. 2023; Wang et al. 2024, Math-Shepherd).
    """

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
    step_classification: StepClassification | None = Field(
        None,
        description="Learn a process reward model from the steps of data.ratings: the sigmoid of the score "
        "at a step's last token should be the step's label.",
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
        ScorePooling.LAST_TOKEN,
        description="Reduction of the token scores to the response's score; with stepClassification "
        "LastToken, as each step has its own.",
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

    @model_validator(mode="after")
    def _steps_are_not_pooled(self) -> "RewardModelSpec":
        """Check that a process reward model has no pooling."""
        if self.scores_steps and self.pooling is not ScorePooling.LAST_TOKEN:
            raise field_errors("RewardModelSpec", (("pooling",), self.pooling, STEPS_ARE_NOT_POOLED))
        return self

    @property
    def data(self) -> str:
        """Member of spec.data that the objective learns from."""
        return str(self.objective.value.data)

    @property
    def scores_steps(self) -> bool:
        """True if the result is a process reward model."""
        return self.objective.step_classification is not None

    @property
    def head_pooling(self) -> str:
        """Pooling that the result's config states: one of ScorePooling, or STEPS_POOLING."""
        return STEPS_POOLING if self.scores_steps else self.pooling.value
