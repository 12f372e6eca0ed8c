"""Learning to score."""

from enum import StrEnum
from typing import ClassVar

from pydantic import Field

from kubealign.spec.algorithms.method import Makes, Offline
from kubealign.spec.base import Spec, Union


class Pooling(StrEnum):
    """LastToken: the score at the response's last token. ResponseSum: the sum of the scores of the response's
    tokens."""

    LAST_TOKEN = "LastToken"
    RESPONSE_SUM = "ResponseSum"


class BradleyTerry(Spec):
    """-log sigmoid(score of the chosen - score of the rejected), on preferences (Bradley and Terry 1952)."""

    data: ClassVar[str] = "preferences"


class Regression(Spec):
    """Squared error between scores and ratings, on ratings: one score for each of their columns."""

    data: ClassVar[str] = "ratings"


class RewardObjective(Union):
    """What the reward model learns from."""

    default_member = "bradley_terry"

    bradley_terry: BradleyTerry | None = Field(
        None, description="From preferences: the chosen should score higher."
    )
    regression: Regression | None = Field(None, description="From ratings: the score should be the rating.")


class RewardModel(Offline):
    """A scalar head on a language model, for use as a reward."""

    makes: ClassVar[Makes] = Makes.REWARD_MODEL

    objective: RewardObjective = Field(
        RewardObjective(bradley_terry=BradleyTerry()), description="What the scores are fitted to."
    )
    pooling: Pooling = Field(
        Pooling.LAST_TOKEN, description="How a response's token scores become its score."
    )
    language_model_coefficient: float = Field(
        0.0,
        ge=0,
        description="Weight of the language-model loss on the chosen response; keeps the trunk's knowledge.",
    )
    score_penalty: float = Field(
        0.0, ge=0, description="Weight of the mean squared score, which keeps scores near zero."
    )

    @property
    def data(self) -> str:
        return str(self.objective.value.data)
