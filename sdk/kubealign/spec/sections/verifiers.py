"""Verifiers: rewards that check a response by a rule, or against the row's answer."""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from kubealign.spec.base import (
    CHOICES_PATTERN,
    LIST_SET_SCHEMA,
    MAX_INT32,
    TAG_NAME_PATTERN,
    ShortText,
    SpecModel,
    SpecUnion,
    distinct_items,
    field_alias,
    field_errors,
)
from kubealign.spec.regular_expressions import compile_pattern
from kubealign.spec.sections.code_verifier import CodeVerifier

#: Name of a tag without its angle brackets.
TagName = Annotated[str, Field(pattern=TAG_NAME_PATTERN, max_length=64)]

_ANSWER_COLUMN = "Column of the data set with the right answer; a row whose value is null has no reward."


class MathExtraction(StrEnum):
    """Last: the last boxed expression or stated final answer, else the last formula or number.

    Boxed: only what the last LaTeX box encloses.
    """

    LAST = "Last"
    BOXED = "Boxed"


class MathVerifier(SpecModel):
    r"""1 if the response's answer equals the row's, as numbers, sets or expressions, else 0.

    Compared by math-verify: `1/2`, `0.5` and `\frac12` are equal. Of an answer in GSM8K's form, the text
    after the last `####` counts.
    """

    answer_column: ShortText = Field("answer", description=_ANSWER_COLUMN)
    extract: MathExtraction = Field(
        MathExtraction.LAST, description="Part of the response that is its answer."
    )
    decimals: int = Field(
        6, ge=0, le=32, description="Decimals to which numbers are rounded before they are compared."
    )


class MultipleChoiceVerifier(SpecModel):
    r"""1 if the response chooses the row's letter, else 0.

    The choice is the letter in the last `\boxed{}`, else the last one after "answer is" or "answer:", else a
    last line that is nothing but the letter.
    """

    answer_column: ShortText = Field(
        "answer",
        description=f"{_ANSWER_COLUMN} The answer is a letter, or the index of one in choices, from 0.",
    )
    choices: str = Field(
        "ABCD", pattern=CHOICES_PATTERN, max_length=26, description="Letters that can be chosen."
    )


class RegexVerifier(SpecModel):
    """1 if the regular expression matches the response, else 0.

    With `answerColumn` the last match must also have the row's answer in its group `answer`, its first group,
    or, without groups, as a whole.
    """

    pattern: str = Field(min_length=1, max_length=4096, description="Regular expression of Python's re.")
    full_match: bool = Field(False, description="The whole response must match, and not a part of it.")
    answer_column: ShortText | None = Field(None, description=f"{_ANSWER_COLUMN} null: any match will do.")

    @field_validator("pattern")
    @classmethod
    def _valid_pattern(cls, value: str) -> str:
        compile_pattern(value)
        return value


class JsonSchemaVerifier(SpecUnion):
    """1 if the response is a JSON document that the schema accepts, else 0.

    The document is the last fenced block, or the whole response without one.
    """

    document_schema: dict[str, Any] | None = Field(
        None, alias="schema", max_length=256, description="JSON Schema, draft 2020-12."
    )
    schema_column: ShortText | None = Field(
        None,
        description="Column of the data set with the schema, as an object or as text; a row whose value is "
        "null has no reward.",
    )


class FormatTagsVerifier(SpecModel):
    """1 if the response consists of the tagged sections in their order, else 0 or a part of 1.

    A section is `<think>...</think>`; only white space may surround it.
    """

    tags: Annotated[list[TagName], Field(min_length=1, max_length=16), distinct_items] = Field(
        ["think", "answer"],
        json_schema_extra=LIST_SET_SCHEMA,
        description="Names of the sections, in their order.",
    )
    partial: bool = Field(
        False,
        description="Count each opening and each closing tag that occurs exactly once, as a share of all "
        "tags, instead of requiring the form as a whole.",
    )


class LinearLength(SpecModel):
    """1 up to `fullTokens`, falling linearly to 0 at `zeroTokens`."""

    full_tokens: int = Field(ge=0, le=MAX_INT32, description="Longest response with reward 1, in tokens.")
    zero_tokens: int = Field(ge=1, le=MAX_INT32, description="Shortest response with reward 0, in tokens.")

    @model_validator(mode="after")
    def _falls(self) -> "LinearLength":
        if self.zero_tokens <= self.full_tokens:
            raise field_errors(
                "LinearLength",
                (("zeroTokens",), self.zero_tokens, f"must be above fullTokens, {self.full_tokens}"),
            )
        return self


class LengthRange(SpecModel):
    """Rewards of the shortest and of the longest response."""

    shortest: float = Field(description="Reward of a response without tokens.")
    longest: float = Field(description="Reward of a response of maxTokens.")


class CosineLength(SpecModel):
    """The cosine reward of Yeo et al. (2025): short right answers, and long wrong ones, are better.

    longest + (shortest - longest) (1 + cos(pi tokens / maxTokens)) / 2, with the range of right or of wrong
    answers.
    """

    max_tokens: int = Field(ge=1, le=MAX_INT32, description="Tokens at which the cosine ends.")
    correct: LengthRange = Field(
        LengthRange(shortest=1.0, longest=0.5), description="Rewards of right answers."
    )
    wrong: LengthRange = Field(LengthRange(shortest=-1.0, longest=-0.5), description="Rewards of wrong ones.")
    exceeded: float = Field(-1.0, description="Reward of a response of maxTokens or more, right or wrong.")
    math: MathVerifier = Field(MathVerifier(), description="Decides whether the answer is right.")


class LengthVerifier(SpecUnion):
    """Reward of the number of tokens of the response: exactly one of linear and cosine."""

    linear: LinearLength | None = Field(None, description="Constant, then falling.")
    cosine: CosineLength | None = Field(None, description="By a cosine, of right and wrong answers.")


class RepetitionVerifier(SpecModel):
    """Penalty of repeated phrases: maxPenalty times the share of n-grams of words that occurred before.

    Yeo et al. (2025); a response with fewer words than `ngram` has 0.
    """

    ngram: int = Field(3, ge=1, le=64, description="Words of an n-gram, separated by white space.")
    max_penalty: float = Field(
        -1.0, le=0, description="Reward of a response that repeats the same n-gram throughout."
    )


class InstructionCriterion(StrEnum):
    """Strict: the response as it is has to follow the instruction.

    Loose: one of eight forms has to follow it: the response, the response without its first line, without its
    last line and without both, each with and without its asterisks.
    """

    STRICT = "Strict"
    LOOSE = "Loose"


class InstructionsVerifier(SpecModel):
    """1 if the response follows all instructions of its row, else 0 or the share that it follows.

    The instructions are those of IFEval (Zhou et al. 2023), and the columns those of its data set.
    """

    ids_column: ShortText = Field(
        "instruction_id_list",
        description="Column of the data set with the ids of the instructions, such as "
        "length_constraints:number_words; a row whose value is null has no reward.",
    )
    kwargs_column: ShortText = Field(
        "kwargs",
        description="Column of the data set with one object for each id: the parameters of the instruction, "
        "of which those that are null are absent. A row whose value is null has no reward.",
    )
    criterion: InstructionCriterion = Field(
        InstructionCriterion.STRICT, description="Forms of the response that may follow an instruction."
    )
    partial: bool = Field(
        False, description="Reward the share of the instructions that are followed instead of all or nothing."
    )


class Verifier(SpecUnion):
    """Exactly one rule."""

    math: MathVerifier | None = Field(None, description="Equality of mathematical answers.")
    multiple_choice: MultipleChoiceVerifier | None = Field(None, description="The right letter.")
    regex: RegexVerifier | None = Field(None, description="A regular expression.")
    json_schema: JsonSchemaVerifier | None = Field(None, description="A JSON document of a schema.")
    code: CodeVerifier | None = Field(None, description="A program that passes tests.")
    format_tags: FormatTagsVerifier | None = Field(None, description="Tagged sections.")
    length: LengthVerifier | None = Field(None, description="Length in tokens.")
    repetition: RepetitionVerifier | None = Field(None, description="Repeated phrases.")
    instructions: InstructionsVerifier | None = Field(None, description="Instructions of the prompt.")

    def named_columns(self) -> dict[str, str]:
        """Return field -> column of the data set that it names, such as math.answerColumn -> answer."""
        rule: Any = self.value
        path = field_alias(type(self), self.member)
        if isinstance(rule, LengthVerifier):
            if rule.cosine is None:
                return {}
            rule, path = rule.cosine.math, f"{path}.cosine.math"
        columns = {name: getattr(rule, name) for name in type(rule).model_fields if name.endswith("_column")}
        return {
            f"{path}.{field_alias(type(rule), name)}": column
            for name, column in columns.items()
            if column is not None
        }
