"""Jobs that make data: samples with rewards, and rows with annotations."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any, ClassVar, TypeAlias

from pydantic import AfterValidator, Field, model_validator

from kubealign.spec.algorithms.method import Makes, Method, Rows, Use
from kubealign.spec.base import MOST, ShortText, Spec, incoherent
from kubealign.spec.placeholders import names

#: A sentence or a few that say what a response should be.
Principle: TypeAlias = Annotated[str, Field(min_length=1, max_length=4096)]


class Keep(StrEnum):
    """All: every sample is a row. Best: the one with the highest reward. BestAndWorst: one preference, of
    the highest and the lowest reward; prompts whose samples are all alike are left out."""

    ALL = "All"
    BEST = "Best"
    BEST_AND_WORST = "BestAndWorst"


def _holding(*needed: str, also: Sequence[str]) -> AfterValidator:
    """Of a prompt: all of `needed` stand in it in braces, any of `also`, and nothing else."""

    def check(text: str) -> str:
        found, known = names(text), [*needed, *also]
        unknown = [name for name in found if name not in known]
        if unknown:
            raise ValueError(f"{_braced(unknown)} stands for nothing here; there are {_braced(known)}")
        missing = [name for name in needed if name not in found]
        if missing:
            raise ValueError(f"must have {_braced(missing)} in it")
        return text

    return AfterValidator(check)


def _braced(found: Sequence[str]) -> str:
    return ", ".join(f"{{{name}}}" for name in found)


_PROMPT = Field(min_length=1, max_length=16384)
CritiquePrompt: TypeAlias = Annotated[str, _PROMPT, _holding("response", also=["prompt", "principle"])]
RevisionPrompt: TypeAlias = Annotated[
    str, _PROMPT, _holding("response", also=["prompt", "principle", "critique"])
]
ComparisonPrompt: TypeAlias = Annotated[
    str, _PROMPT, _holding("first", "second", also=["prompt", "principle"])
]


class Revision(Spec):
    """The policy criticises its response by a principle, then writes it anew (Bai et al. 2022)."""

    principles: list[Principle] = Field(
        min_length=1, max_length=256, description="One is drawn for each revision, seeded by the job."
    )
    critique: CritiquePrompt = Field(
        description="Prompt of the critique, with {prompt}, {response} and {principle} in it.",
    )
    revision: RevisionPrompt = Field(
        description="Prompt of the new response, with {prompt}, {response}, {principle} and {critique} in "
        "it.",
    )
    times: int = Field(1, ge=1, le=64, description="How often each response is revised.")


class Comparison(Spec):
    """The policy says which of two responses fits a principle better (Bai et al. 2022): which of two answers
    it finds likelier after a prompt. Each pair is asked about in both orders."""

    principles: list[Principle] = Field(
        min_length=1, max_length=256, description="One is drawn for each pair, seeded by the job."
    )
    prompt: ComparisonPrompt = Field(
        description="The question, with {prompt}, {first}, {second} and {principle} in it.",
    )
    answers: list[ShortText] = Field(
        ["A", "B"],
        min_length=2,
        max_length=2,
        description="What the question is answered with: where the first is better, where the second is.",
    )


class Generate(Method):
    """Samples responses to prompts and writes them, with their rewards, as a data set."""

    samples: ClassVar[bool] = True
    rewards: ClassVar[Use] = Use.ALLOWED
    data: ClassVar[str] = "prompts"
    makes: ClassVar[Makes] = Makes.DATA

    prompts_per_step: int = Field(64, ge=1, le=MOST, description="Prompts of one step.")
    samples_per_prompt: int = Field(1, ge=1, le=MOST, description="Responses sampled to each prompt.")
    keep: Keep = Field(Keep.ALL, description="Which samples become rows.")
    revise: Revision | None = Field(
        None, description="The policy revises its responses by principles; null: they stay as sampled."
    )
    compare: Comparison | None = Field(
        None,
        description="The policy compares samples, the first with the second, the third with the fourth: the "
        "rows are preferences. null: no comparison.",
    )

    @property
    def needs_rewards(self) -> bool:
        return self.keep is not Keep.ALL

    @property
    def longest_template(self) -> int:
        """Characters of the longest prompt about a response; 0: nothing is asked about responses."""
        prompts = [] if self.revise is None else [self.revise.critique, self.revise.revision]
        prompts += [] if self.compare is None else [self.compare.prompt]
        return max(map(len, prompts), default=0)

    @model_validator(mode="after")
    def _samples_to_choose_from(self) -> "Generate":
        problems: list[tuple[tuple[str, ...], Any, str]] = []
        if self.keep is not Keep.ALL and self.samples_per_prompt < 2:
            remedy = f"keep {self.keep} chooses among a prompt's samples: set at least 2"
            problems.append((("samplesPerPrompt",), self.samples_per_prompt, remedy))
        if self.compare is not None and self.samples_per_prompt % 2:
            remedy = "samples are compared in pairs: set an even number"
            problems.append((("samplesPerPrompt",), self.samples_per_prompt, remedy))
        if self.compare is not None and self.keep is not Keep.ALL:
            remedy = "the comparison chooses, not the rewards: set All, or remove compare"
            problems.append((("keep",), self.keep, remedy))
        if problems:
            raise incoherent("Generate", *problems)
        return self


class Annotate(Rows):
    """Scores the responses of a data set by the job's rewards and writes its rows with the scores as columns
    (SteerLM's first step, Dong et al. 2023). The policy lends its tokenizer."""

    rewards: ClassVar[Use] = Use.NEEDED
    data: ClassVar[str] = "demonstrations"
    makes: ClassVar[Makes] = Makes.DATA

    round_to_integers: bool = Field(False, description="Scores are rounded to whole numbers.")
    lowest: float | None = Field(None, description="Scores are at least this; null: unbounded.")
    highest: float | None = Field(None, description="Scores are at most this; null: unbounded.")

    @model_validator(mode="after")
    def _bounds(self) -> "Annotate":
        problems: list[tuple[tuple[str, ...], Any, str]] = []
        if self.lowest is not None and self.highest is not None and self.lowest > self.highest:
            problems.append((("lowest",), self.lowest, f"must not be above highest ({self.highest})"))
        for name, bound in (("lowest", self.lowest), ("highest", self.highest)):
            if self.round_to_integers and bound is not None and bound != int(bound):
                remedy = "must be a whole number where scores are rounded to whole numbers"
                problems.append(((name,), bound, remedy))
        if problems:
            raise incoherent("Annotate", *problems)
        return self
