"""Specs of jobs that produce data: sampled responses with rewards, and annotated rows."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any, ClassVar, TypeAlias

from pydantic import AfterValidator, Field, model_validator

from kubealign.spec.algorithms.base import (
    AlgorithmSpec,
    Requirement,
    ResultKind,
    RowAlgorithmSpec,
    steps_of_epochs,
)
from kubealign.spec.base import MAX_INT32, ShortText, SpecModel, field_errors
from kubealign.spec.placeholders import placeholder_names

#: One or a few sentences that describe a desired response.
Principle: TypeAlias = Annotated[str, Field(min_length=1, max_length=4096)]


class SampleSelection(StrEnum):
    """All: each sample becomes a row.

    Best: the sample with the highest reward. BestAndWorst: one preference pair of the samples with the
    highest and the lowest reward; prompts whose samples all have the same reward are skipped.
    """

    ALL = "All"
    BEST = "Best"
    BEST_AND_WORST = "BestAndWorst"


def _requires_placeholders(*needed: str, also: Sequence[str]) -> AfterValidator:
    """Return a validator for prompt templates.

    Args:
        needed: Placeholders that the template must contain.
        also: Placeholders that the template may contain as well; all others are errors.
    """

    def check(text: str) -> str:
        present, allowed = placeholder_names(text), [*needed, *also]
        unknown = [name for name in present if name not in allowed]
        if unknown:
            raise ValueError(
                f"{_in_braces(unknown)} is not a placeholder here; there are {_in_braces(allowed)}"
            )
        missing = [name for name in needed if name not in present]
        if missing:
            raise ValueError(f"must have {_in_braces(missing)} in it")
        return text

    return AfterValidator(check)


def _in_braces(placeholders: Sequence[str]) -> str:
    return ", ".join(f"{{{name}}}" for name in placeholders)


_PROMPT = Field(min_length=1, max_length=16384)
CritiquePrompt: TypeAlias = Annotated[
    str, _PROMPT, _requires_placeholders("response", also=["prompt", "principle"])
]
RevisionPrompt: TypeAlias = Annotated[
    str, _PROMPT, _requires_placeholders("response", also=["prompt", "principle", "critique"])
]
ComparisonPrompt: TypeAlias = Annotated[
    str, _PROMPT, _requires_placeholders("first", "second", also=["prompt", "principle"])
]


class CritiqueRevision(SpecModel):
    """Critique and revision by the policy (Bai et al. 2022).

    The policy criticises its response by a principle and then rewrites the response.
    """

    principles: list[Principle] = Field(
        min_length=1,
        max_length=256,
        description="Principles; one is drawn at random for each revision, seeded by the job.",
    )
    critique: CritiquePrompt = Field(
        description="Prompt for the critique, with {prompt}, {response} and {principle} as placeholders.",
    )
    revision: RevisionPrompt = Field(
        description="Prompt for the revised response, with {prompt}, {response}, {principle} and "
        "{critique} as placeholders.",
    )
    times: int = Field(1, ge=1, le=64, description="Number of successive revisions of each response.")


class PairwiseComparison(SpecModel):
    """AI feedback by pairwise comparison (Bai et al. 2022).

    The policy is asked which of two responses fits a principle better; the more likely of the two answers
    wins. Each pair is compared in both orders.
    """

    principles: list[Principle] = Field(
        min_length=1,
        max_length=256,
        description="Principles; one is drawn at random for each pair, seeded by the job.",
    )
    prompt: ComparisonPrompt = Field(
        description="Prompt for the comparison, with {prompt}, {first}, {second} and {principle} as "
        "placeholders.",
    )
    answers: list[ShortText] = Field(
        ["A", "B"],
        min_length=2,
        max_length=2,
        description="The two possible answers: the first means that the first response is better, the "
        "second that the second is.",
    )


class GenerateSpec(AlgorithmSpec):
    """Samples responses to prompts and writes them, with their rewards, as a data set."""

    samples: ClassVar[bool] = True
    rewards: ClassVar[Requirement] = Requirement.ALLOWED
    data: ClassVar[str] = "prompts"
    makes: ClassVar[ResultKind] = ResultKind.DATA
    reads_token_ids: ClassVar[bool] = False

    prompts_per_step: int = Field(64, ge=1, le=MAX_INT32, description="Prompts per step.")
    samples_per_prompt: int = Field(1, ge=1, le=MAX_INT32, description="Responses sampled for each prompt.")
    keep: SampleSelection = Field(
        SampleSelection.ALL, description="Selection of the samples that become rows."
    )
    revise: CritiqueRevision | None = Field(
        None,
        description="Critique and revision of the responses by the policy; null: responses are kept as "
        "sampled.",
    )
    compare: PairwiseComparison | None = Field(
        None,
        description="Pairwise comparison by the policy of the first sample with the second, the third "
        "with the fourth, and so on; the rows are preferences. null: no comparison.",
    )

    def steps_of_data(self, rows: int) -> int | None:
        return steps_of_epochs(1, rows, self.prompts_per_step)

    @property
    def needs_rewards(self) -> bool:
        return self.keep is not SampleSelection.ALL

    @property
    def longest_prompt_template(self) -> int:
        """Characters of the longest critique, revision or comparison prompt; 0 if the job has none."""
        prompts = [] if self.revise is None else [self.revise.critique, self.revise.revision]
        prompts += [] if self.compare is None else [self.compare.prompt]
        return max(map(len, prompts), default=0)

    @model_validator(mode="after")
    def _samples_to_choose_from(self) -> "GenerateSpec":
        problems: list[tuple[tuple[str, ...], Any, str]] = []
        if self.keep is not SampleSelection.ALL and self.samples_per_prompt < 2:
            remedy = f"keep {self.keep} chooses among a prompt's samples: set at least 2"
            problems.append((("samplesPerPrompt",), self.samples_per_prompt, remedy))
        if self.compare is not None and self.samples_per_prompt % 2:
            remedy = "samples are compared in pairs: set an even number"
            problems.append((("samplesPerPrompt",), self.samples_per_prompt, remedy))
        if self.compare is not None and self.keep is not SampleSelection.ALL:
            remedy = "the comparison chooses, not the rewards: set All, or remove compare"
            problems.append((("keep",), self.keep, remedy))
        if problems:
            raise field_errors("Generate", *problems)
        return self


class AnnotateSpec(RowAlgorithmSpec):
    """Scores the responses of a data set with the job's rewards and writes the rows with the scores as
    columns.

    This is the first step of SteerLM (Dong et al. 2023). Only the policy's tokenizer is used.
    """

    rewards: ClassVar[Requirement] = Requirement.NEEDED
    data: ClassVar[str] = "demonstrations"
    makes: ClassVar[ResultKind] = ResultKind.DATA
    reads_token_ids: ClassVar[bool] = False

    round_to_integers: bool = Field(False, description="Round the scores to whole numbers.")
    lowest: float | None = Field(
        None, description="Lower bound to which scores are clamped; null: unbounded."
    )
    highest: float | None = Field(
        None, description="Upper bound to which scores are clamped; null: unbounded."
    )

    def steps_of_data(self, rows: int) -> int | None:
        return steps_of_epochs(1, rows, self.rows_per_step)

    @model_validator(mode="after")
    def _bounds(self) -> "AnnotateSpec":
        problems: list[tuple[tuple[str, ...], Any, str]] = []
        if self.lowest is not None and self.highest is not None and self.lowest > self.highest:
            problems.append((("lowest",), self.lowest, f"must not be above highest ({self.highest})"))
        for name, bound in (("lowest", self.lowest), ("highest", self.highest)):
            if self.round_to_integers and bound is not None and bound != int(bound):
                remedy = "must be a whole number where scores are rounded to whole numbers"
                problems.append(((name,), bound, remedy))
        if problems:
            raise field_errors("Annotate", *problems)
        return self
