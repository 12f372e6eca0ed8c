"""Curriculum: prompts that are always or never solved are drawn less often in later epochs."""

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from kubealign.spec.base import SpecModel, field_errors

#: Error of a curriculum without a pool.
NO_POOL = "set easy, hard, or both: prompts are drawn alike unless they are in one of these pools"
#: Error of pools that overlap.
OVERLAPPING_POOLS = "must be below easy.atLeast: a prompt is in one pool only"

_SHARE = "Share of the prompts in this pool that an epoch draws; others are skipped until a later epoch."
# No pool is retired: a mean reward that is never measured again says nothing about the present policy.
_LEAST_SHARE = 0.01


class EasyPrompts(SpecModel):
    """Pool of the prompts with a high mean reward."""

    at_least: float = Field(
        description="Lowest mean reward of an easy prompt, in the units of the reward: 0.9 for rewards of 0 "
        "and 1 is 90 % of the responses correct."
    )
    share: float = Field(0.2, ge=_LEAST_SHARE, le=1, description=_SHARE)


class HardPrompts(SpecModel):
    """Pool of the prompts with a low mean reward."""

    at_most: float = Field(
        description="Highest mean reward of a hard prompt, in the units of the reward: 0.0 for rewards of 0 "
        "and 1 is no response correct."
    )
    share: float = Field(0.2, ge=_LEAST_SHARE, le=1, description=_SHARE)


class PromptCurriculum(SpecModel):
    """Curriculum by the mean reward of each prompt's latest group, which is the pass rate if rewards are 0
    and 1.

    The first epoch draws every prompt. When a later epoch begins, each prompt is assigned to a pool by the
    rewards of the steps trained until then. An epoch draws all prompts that are in no pool or have no reward
    yet, and of the easy and the hard ones a share. At least one of easy and hard must be set.
    """

    by: str | None = Field(
        None,
        max_length=63,
        description="Name of the reward whose mean is compared; null: the weighted sum of all rewards, "
        "before standardisation. A prompt to which the reward does not apply stays in its pool.",
    )
    easy: EasyPrompts | None = Field(None, description="Prompts solved nearly always; null: no such pool.")
    hard: HardPrompts | None = Field(None, description="Prompts solved hardly ever; null: no such pool.")

    @model_validator(mode="after")
    def _pools(self) -> "PromptCurriculum":
        """Check that there is a pool, and that the pools do not overlap."""
        if self.easy is None and self.hard is None:
            raise PydanticCustomError("incoherent", "{text}", {"text": NO_POOL})
        if self.easy is not None and self.hard is not None and self.hard.at_most >= self.easy.at_least:
            problem = (("hard", "atMost"), self.hard.at_most, OVERLAPPING_POOLS)
            raise field_errors(type(self).__name__, problem)
        return self
