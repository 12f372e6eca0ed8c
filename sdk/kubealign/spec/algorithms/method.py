"""What every algorithm says of itself, so that nobody else need know its name."""

from enum import StrEnum
from typing import ClassVar

from pydantic import Field

from kubealign.spec.base import MOST, Spec


class Makes(StrEnum):
    """POLICY: a causal language model. REWARD_MODEL: a model that scores. DATA: rows, and no weights."""

    POLICY = "policy"
    REWARD_MODEL = "reward model"
    DATA = "data"


class Use(StrEnum):
    """Whether an algorithm has a use for something."""

    NEEDED = "needed"
    ALLOWED = "allowed"
    NONE = "none"


class Method(Spec):
    """Base of all entries of the algorithm union."""

    #: It samples each step's batch from the policy and learns from rewards.
    online: ClassVar[bool] = False
    #: It has rollout workers, even without sampled validation.
    samples: ClassVar[bool] = False
    critic: ClassVar[bool] = False
    #: Preferences with a rating for each response.
    rated: ClassVar[bool] = False
    #: Each row's prompt is also read with another row's response.
    mismatched: ClassVar[bool] = False
    #: Of a conversation it can imitate several turns.
    turns: ClassVar[bool] = False
    #: A frozen model whose distributions it learns from.
    teacher: ClassVar[bool] = False
    rewards: ClassVar[Use] = Use.NONE
    makes: ClassVar[Makes] = Makes.POLICY

    @property
    def needs_rewards(self) -> bool:
        """Whether the job must name rewards."""
        return self.rewards is Use.NEEDED

    @property
    def trains(self) -> bool:
        """Whether the job has a trainer."""
        return self.makes is not Makes.DATA

    @property
    def plugin(self) -> str | None:
        """Name of the entry point of another package that holds its maths; None: it is kubealign's own."""
        return None

    @property
    def uses_reference(self) -> bool:
        """Whether a frozen model's log-probabilities of the tokens are needed."""
        return False

    @property
    def updates_per_step(self) -> int:
        """Optimiser steps of one step."""
        return 1


class Rows(Method):
    """What every algorithm that goes through given rows has."""

    rows_per_step: int = Field(64, ge=1, le=MOST, description="Rows of one step.")


class Offline(Rows):
    """What every algorithm that learns from given rows has."""

    max_epochs: int | None = Field(
        None,
        ge=1,
        le=MOST,
        description="End after this many times through the data, if maxSteps has not ended the job before.",
    )
