"""Methods in rounds: the policy writes the rows that it learns from next."""

import re
from typing import Annotated, ClassVar, TypeAlias

from pydantic import AfterValidator, Field

from kubealign.spec.algorithms.method import Method, Use
from kubealign.spec.base import MOST, Spec
from kubealign.spec.placeholders import names


def _about_a_response(template: str) -> str:
    there = names(template)
    for name in there:
        if name not in ("prompt", "response"):
            raise ValueError(f"has {{{name}}} in it: only {{prompt}} and {{response}} stand for something")
    if "response" not in there:
        raise ValueError("does not show the response that is judged: put {response} in it")
    return template


def _of_one_group(pattern: str) -> str:
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise ValueError(f"is no regular expression: {error}") from error
    if groups != 1:
        raise ValueError(f"must have one group, the score's, and has {groups}: (?:...) groups without one")
    return pattern


#: A prompt about a response.
JudgePrompt: TypeAlias = Annotated[
    str, Field(min_length=1, max_length=16384), AfterValidator(_about_a_response)
]

#: A regular expression that finds a score.
ScorePattern: TypeAlias = Annotated[str, Field(min_length=1, max_length=1024), AfterValidator(_of_one_group)]


class Judge(Spec):
    """How the policy judges a response: by an answer to a prompt about it."""

    prompt: JudgePrompt = Field(description="The judge's prompt, with {prompt} and {response} in it.")
    pattern: ScorePattern = Field(
        r"[Ss]core: *(-?[0-9]+(?:\.[0-9]+)?)",
        description="A regular expression whose one group is the score in the judge's answer.",
    )
    samples: int = Field(1, ge=1, le=MOST, description="Judgements of each response; their mean counts.")
    max_tokens: int = Field(256, ge=1, le=MOST, description="Longest judgement, in tokens.")
    temperature: float = Field(1.0, ge=0, description="Of the judgements; 0: always the likeliest token.")


class Rounds(Method):
    """What every method in rounds has. A round: responses to prompts are sampled from the weights there are,
    rows are made of them, and the policy learns from these. The job ends with its rounds or at maxSteps."""

    samples: ClassVar[bool] = True

    rounds: int = Field(3, ge=1, le=MOST, description="Rounds of the job.")
    prompts_per_round: int = Field(256, ge=1, le=MOST, description="Prompts of one round.")
    samples_per_prompt: int = Field(1, ge=1, le=MOST, description="Responses sampled to each prompt.")
    rows_per_step: int = Field(64, ge=1, le=MOST, description="Rows of one step.")
    epochs_per_round: int = Field(1, ge=1, le=MOST, description="Times that a round's rows are gone through.")

    @property
    def judged_by(self) -> Judge | None:
        """How the policy judges its own responses; None: it does not."""
        return None


class SPIN(Rounds):
    """Self-play fine-tuning (Chen et al. 2024): the policy learns to prefer the demonstrations to what it
    wrote itself at the start of the round, which is also where its reference stands."""

    data: ClassVar[str] = "demonstrations"

    beta: float = Field(0.1, gt=0, description="How strongly the policy is held to the round's start.")


class RejectionSampling(Rounds):
    """Rejection sampling (Touvron et al. 2023; Dong et al. 2023, RAFT): the best of several responses, by
    their rewards, are imitated."""

    data: ClassVar[str] = "prompts"
    rewards: ClassVar[Use] = Use.NEEDED

    samples_per_prompt: int = Field(4, ge=2, le=MOST, description="Responses sampled to each prompt.")
    keep_per_prompt: int = Field(1, ge=1, le=MOST, description="Best responses of each prompt that are kept.")
    minimum_reward: float | None = Field(
        None, description="Responses below it are never imitated; null: the best always are."
    )


class SelfRewarding(Rounds):
    """Self-rewarding language models (Yuan et al. 2024): the policy judges its own responses, and learns to
    prefer the best to the worst of each prompt; the reference is the round's start."""

    data: ClassVar[str] = "prompts"

    samples_per_prompt: int = Field(4, ge=2, le=MOST, description="Responses sampled to each prompt.")
    judge: Judge = Field(description="How the policy judges.")
    beta: float = Field(0.1, gt=0, description="How strongly the policy is held to the round's start.")
    minimum_margin: float = Field(
        0.0, ge=0, description="Prompts whose best and worst scores differ by no more make no pair."
    )

    @property
    def judged_by(self) -> Judge:
        return self.judge
