"""Validation on held-out rows, and early stopping."""

from enum import StrEnum
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, Field, model_validator

from kubealign.spec.base import (
    CHOICES_PATTERN,
    DNS_LABEL_PATTERN,
    LIST_SET_SCHEMA,
    MAX_INT32,
    EntryName,
    ShortText,
    SpecModel,
    SpecUnion,
    distinct_items,
    field_errors,
    list_map_schema,
    require_exactly_one,
    unique_by,
)
from kubealign.spec.benchmark_rows import BenchmarkRows
from kubealign.spec.pods.egress import EGRESS_DESCRIPTION, Egress
from kubealign.spec.regular_expressions import check_one_group
from kubealign.spec.sections.data import Data
from kubealign.spec.sections.reward_servers import HttpReward, JudgeReward, PolicyJudge
from kubealign.spec.sections.rewards import JUDGED_BY_ROLLOUT_WORKERS, RewardFunction
from kubealign.spec.sections.score_calls import RewardErrorPolicy, ScoreCalls, ScoreScope
from kubealign.spec.sections.verifiers import Verifier

#: Message for a number of responses of pass@k.
TOO_FEW_SAMPLES = "must be at most samplesPerPrompt"

PassCount: TypeAlias = Annotated[int, Field(ge=1, le=MAX_INT32)]


#: Fields of `ValidationScore`, exactly one of which is set.
SCORE_SOURCES = ("function", "verifier", "http", "judge", "policy_judge")

#: Message for the egress of a score that is a verifier without a server.
VERIFIER_CONNECTS_NOWHERE = "a verifier without code.server connects to no server: remove it"

#: Message for `scope` of a score that scores samples one by one.
SCORES_NO_GROUPS = "only a function can score all responses to a prompt at once: write Sample"


class ValidationScore(ScoreCalls, SpecModel):
    """A score of responses sampled for validation, which is reported and never trained on: exactly one of
    function, verifier, http, judge and policyJudge.
    """

    name: EntryName = Field(
        description="Unique in the job, also among the rewards; reported in the metrics as val/NAME. That of "
        "a score of a set is unique in the set, and reported as val/SET/NAME."
    )
    function: RewardFunction | None = Field(None, description="A Python function.")
    verifier: Verifier | None = Field(
        None, description="A rule that checks the response, most often against a column of the row."
    )
    http: HttpReward | None = Field(None, description="A service of yours that scores samples.")
    judge: JudgeReward | None = Field(
        None,
        description="A language model of another server. With the task pairwise the score is the win rate "
        "against a column of the rows.",
    )
    policy_judge: PolicyJudge | None = Field(
        None, description="The measured weights as a judge, which judge their own responses."
    )
    concurrency: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="Calls in flight, which are requests to another server, or processes of a function. "
        "null: 8 for http, judge and verifier.code.server, else 1.",
    )
    scope: ScoreScope = Field(
        ScoreScope.SAMPLE,
        description="Responses of a call. Group is only for function; timeoutSeconds and onError then hold "
        "for all responses to a prompt together.",
    )
    timeout_seconds: float = Field(
        30.0,
        gt=0,
        description="Longest time that the function may take for one sample. Samples that were scored "
        "together and take longer are scored again in smaller calls. With http, judge "
        "and verifier.code.server: time of a request; with policyJudge: of a judgement, its wait included.",
    )
    on_error: RewardErrorPolicy | None = Field(
        None,
        description="Effect of a sample for which the source gives no score, as for a reward. null: Skip for "
        "http, judge, policyJudge and verifier.code.server, else Retry.",
    )
    egress: Egress = Field(
        default_factory=list, description=f"Destinations that the function or score {EGRESS_DESCRIPTION}"
    )

    @model_validator(mode="after")
    def _one_source(self) -> "ValidationScore":
        """Check that one source is set and that the other fields fit it."""
        require_exactly_one(self, list(SCORE_SOURCES))
        if self.verifier is not None and self.egress and not self.calls_a_server:
            raise field_errors("ValidationScore", (("egress",), self.egress, VERIFIER_CONNECTS_NOWHERE))
        for name in ("concurrency", "egress"):
            value = getattr(self, name)
            if self.policy_judge is not None and value:
                raise field_errors("ValidationScore", ((name,), value, JUDGED_BY_ROLLOUT_WORKERS))
        if self.scores_groups and self.function is None:
            raise field_errors("ValidationScore", (("scope",), self.scope, SCORES_NO_GROUPS))
        self.check_code_time("ValidationScore")
        return self


class BoxedAnswer(SpecModel):
    r"""The content of the last `\boxed{}`, without spaces."""


class NumberAnswer(SpecModel):
    """The last number."""


class ChoiceAnswer(SpecModel):
    """The letter that the response chooses, as for the verifier multipleChoice."""

    choices: Annotated[str, Field(pattern=CHOICES_PATTERN, max_length=26)] = Field(
        "ABCD", description="The letters of the choices."
    )


class RegexAnswer(SpecModel):
    """The first group of the last match, without spaces around it."""

    pattern: Annotated[str, Field(min_length=1, max_length=1024), AfterValidator(check_one_group)] = Field(
        description="Regular expression with one group."
    )


class MajorityVote(SpecUnion):
    """Answer of a response, by which the responses to a prompt vote."""

    boxed: BoxedAnswer | None = Field(None, description="The content of a box of LaTeX.")
    number: NumberAnswer | None = Field(None, description="The last number.")
    choice: ChoiceAnswer | None = Field(None, description="A letter of a multiple choice.")
    regex: RegexAnswer | None = Field(None, description="A match of a regular expression.")


class ValidationSampling(SpecModel):
    """Sampling of responses to the validation prompts.

    Reported as val/reward/NAME for the job's rewards, val/NAME for the scores, and val/response_length. The
    mean of a score over all responses is avg@samplesPerPrompt. The metrics of a set begin with val/SET/.
    """

    samples_per_prompt: int = Field(1, ge=1, le=MAX_INT32, description="Responses sampled for each prompt.")
    temperature: float = Field(1.0, ge=0, description="Sampling temperature; 0: greedy decoding.")
    top_k: int | None = Field(
        None,
        ge=0,
        le=MAX_INT32,
        description="Sample among the k most likely tokens; 0: among all; null: as rollout.sampling.",
    )
    top_p: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Sample among the most likely tokens whose cumulative probability reaches this value; "
        "null: as rollout.sampling.",
    )
    max_tokens: int | None = Field(
        None, ge=1, le=MAX_INT32, description="Most tokens of a response; null: as rollout.sampling."
    )
    pass_at: Annotated[list[PassCount], Field(max_length=16), distinct_items] = Field(
        default_factory=list,
        json_schema_extra=LIST_SET_SCHEMA,
        description="Numbers k of responses, at most samplesPerPrompt: NAME/pass@k is the probability that "
        "one of k responses passes, estimated without bias from all responses to a prompt.",
    )
    pass_threshold: float = Field(1.0, description="Least score of a response that passes.")
    majority: MajorityVote | None = Field(
        None,
        description="NAME/majority@N: score of the most frequent answer among the N responses to a prompt.",
    )
    confidence: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Level of confidence intervals, such as 0.95: NAME/ci_low and NAME/ci_high, by a "
        "bootstrap over the prompts; null: none.",
    )
    scores: list[ValidationScore] = Field(
        default_factory=list,
        max_length=16,
        json_schema_extra=list_map_schema("name"),
        description="Additional scores of the responses.",
    )
    initial_policy_column: ShortText | None = Field(
        None,
        description="Column, for the scores, with a response of the policy with which the job begins, "
        "sampled once before the first step; a pairwise judge that names it reports the win rate against "
        "the initial policy. The rows must not have it. null: none is sampled.",
    )

    @model_validator(mode="after")
    def _enough_samples(self) -> "ValidationSampling":
        """Check that there are as many responses as pass@k needs."""
        for index, k in enumerate(self.pass_at):
            if k > self.samples_per_prompt:
                raise field_errors(
                    "ValidationSampling",
                    (("passAt", index), k, f"{TOO_FEW_SAMPLES}, {self.samples_per_prompt}"),
                )
        return self


class EarlyStoppingTarget(SpecModel):
    """Target value of a metric. Exactly one of atLeast and atMost must be set."""

    at_least: float | None = Field(None, description="Stop at this value or above.")
    at_most: float | None = Field(None, description="Stop at this value or below.")

    @model_validator(mode="after")
    def _one(self) -> "EarlyStoppingTarget":
        """Check that exactly one bound is set."""
        require_exactly_one(self, ["at_least", "at_most"], example="atLeast: 0.5")
        return self

    def is_reached(self, value: float) -> bool:
        """Return True if the value meets the target."""
        if self.at_least is not None:
            return value >= self.at_least
        assert self.at_most is not None
        return value <= self.at_most


class MetricDirection(StrEnum):
    """Maximize: a larger value is better. Minimize: a smaller one is."""

    MAXIMIZE = "Maximize"
    MINIMIZE = "Minimize"

    def is_better(self, value: float, than: float, margin: float) -> bool:
        """Return True if a value is better than another one by more than a margin."""
        return value > than + margin if self is MetricDirection.MAXIMIZE else value < than - margin


class EarlyStoppingPatience(SpecModel):
    """End after validations in a row without a better value than the best so far."""

    validations: int = Field(ge=1, le=MAX_INT32, description="Validations without a better value.")
    direction: MetricDirection = Field(MetricDirection.MAXIMIZE, description="Direction of better values.")
    margin: float = Field(0.0, ge=0, description="A value must be better by more than this to count.")


#: Message for early stopping without a condition.
NOTHING_STOPS = "nothing ends the job: set target, patience or both"


class EarlyStopping(SpecModel):
    """Early stopping: the job ends as Succeeded when a validation metric reaches its target, or stays away
    from a better value.
    """

    metric: ShortText = Field(
        description="A metric under val/, such as val/loss, val/exact or val/SET/exact."
    )
    target: EarlyStoppingTarget | None = Field(None, description="Target value of the metric.")
    patience: EarlyStoppingPatience | None = Field(
        None, description="Validations that the job waits for a better value."
    )

    @model_validator(mode="after")
    def _has_condition(self) -> "EarlyStopping":
        """Check that something ends the job."""
        if self.target is None and self.patience is None:
            raise field_errors("EarlyStopping", (("target",), None, NOTHING_STOPS))
        return self


#: Name of the score of every preset.
PRESET_SCORE = "accuracy"
NAMED_AS_PRESET_SCORE = "the score of the preset has this name: choose another"

#: Names of validation sets; with the name of a score and a hyphen they are the name of a process.
SetName: TypeAlias = Annotated[str, Field(pattern=DNS_LABEL_PATTERN, max_length=24)]

_HELD_OUT_ROWS = "Held-out rows; the same member as the algorithm's data, or prompts."
_GROUP_BY = "Column by whose values every metric is reported in addition."


class ValidationSet(SpecModel):
    """A named set of held-out rows, measured in addition to validation.data, with metrics of its own."""

    name: SetName = Field(
        description="Unique in the list; reported in the metrics as val/NAME/..., and neither reward nor the "
        "name of a score of validation.sampling."
    )
    data: Data | None = Field(None, description=f"{_HELD_OUT_ROWS} Exactly one of data and preset is set.")
    preset: BenchmarkRows | None = Field(
        None,
        description="Rows of a known benchmark in place of data, with the score accuracy. Without sampling, "
        "one response is sampled by greedy decoding; sampling.maxTokens null: the benchmark's.",
    )
    sampling: ValidationSampling | None = Field(
        None,
        description="Sampling of responses to the rows' prompts, with scores whose names are unique in the "
        "set. Always done by algorithms that sample.",
    )
    rewards: Annotated[list[EntryName], Field(max_length=32), distinct_items] = Field(
        default_factory=list,
        json_schema_extra=LIST_SET_SCHEMA,
        description="Names of the job's rewards that score the responses too; empty: sampling.scores alone.",
    )
    every_steps: int | None = Field(
        None, ge=1, le=MAX_INT32, description="Steps between validations; null: as validation.everySteps."
    )
    at_start: bool | None = Field(
        None, description="Validate the initial weights; null: as validation.atStart."
    )
    at_end: bool | None = Field(None, description="Validate the final weights; null: as validation.atEnd.")
    group_by: ShortText | None = Field(None, description=_GROUP_BY)

    @model_validator(mode="after")
    def _one_kind_of_rows(self) -> "ValidationSet":
        """Check that there are rows, and that no score has the name of the preset's."""
        require_exactly_one(self, ["data", "preset"], example="preset: {benchmark: Gsm8k}")
        scores = [] if self.preset is None or self.sampling is None else self.sampling.scores
        for index, score in enumerate(scores):
            if score.name == PRESET_SCORE:
                path = ("sampling", "scores", index, "name")
                raise field_errors("ValidationSet", (path, score.name, NAMED_AS_PRESET_SCORE))
        return self


#: Message for a validation without rows.
NOTHING_VALIDATED = "there are no rows to validate on: set data, sets or both"

#: Message for a field that is about the rows of validation.data, where there are none.
ROWS_ARE_IN_SETS = "belongs to validation.data, which is not set: set it in the entries of sets"


class Validation(SpecModel):
    """Validation on held-out rows, before, during and after training."""

    data: Data | None = Field(None, description=f"{_HELD_OUT_ROWS} null: only those of sets.")
    sampling: ValidationSampling | None = Field(
        None, description="Sampling of responses to the rows' prompts. Always done by algorithms that sample."
    )
    every_steps: int | None = Field(
        None, ge=1, le=MAX_INT32, description="Steps between validations; null: only at start and end."
    )
    at_start: bool = Field(True, description="Validate the initial weights.")
    at_end: bool = Field(True, description="Validate the final weights.")
    group_by: ShortText | None = Field(None, description=_GROUP_BY)
    early_stopping: EarlyStopping | None = Field(None, description="Early stopping on a validation metric.")
    sets: Annotated[list[ValidationSet], unique_by("name")] = Field(
        default_factory=list,
        max_length=16,
        json_schema_extra=list_map_schema("name"),
        description="Further sets of held-out rows, such as benchmarks.",
    )

    @model_validator(mode="after")
    def _has_rows(self) -> "Validation":
        """Check that there are rows, and that no field is about rows that are not set."""
        if self.data is not None:
            return self
        if not self.sets:
            raise field_errors("Validation", (("data",), None, NOTHING_VALIDATED))
        problems = [
            ((field,), value, ROWS_ARE_IN_SETS)
            for field, value in (("sampling", self.sampling), ("groupBy", self.group_by))
            if value is not None
        ]
        if problems:
            raise field_errors("Validation", *problems)
        return self
