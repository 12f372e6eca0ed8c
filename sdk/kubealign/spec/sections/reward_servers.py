"""Rewards of other servers: a service with kubealign's HTTP contract, or a language model as a judge."""

from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, Field, model_validator

from kubealign.spec.base import (
    ABSOLUTE_PATH_PATTERN,
    ENV_NAME_PATTERN,
    HTTP_ADDRESS_PATTERN,
    MAX_INT32,
    TEMPLATE_PATTERN,
    ShortText,
    SpecModel,
    SpecUnion,
    field_errors,
)
from kubealign.spec.placeholders import check_placeholders, placeholder_names

#: Task of a judge -> placeholders of its template that stand for no column; those that it must have come
#: first.
JUDGE_PLACEHOLDERS = {
    "pointwise": (("response",), ("prompt", "rubric", "scale")),
    "reference": (("response", "answer"), ("prompt", "rubric", "scale")),
    "pairwise": (("first", "second"), ("prompt", "rubric")),
}
_ALL_PLACEHOLDERS = frozenset(
    name for needed, others in JUDGE_PLACEHOLDERS.values() for name in (*needed, *others)
)
#: Message for the bounds of a scale.
SCALE_IS_EMPTY = "must be above lowest"

#: Most characters of kubealign's own templates.
_OWN_TEMPLATE = 1024
_PER_REPLICA = "in each replica; null: unlimited."

Rubric: TypeAlias = Annotated[str, Field(min_length=1, max_length=16384)]


class RewardServer(SpecModel):
    """A server that a reward's process calls, with its credentials.

    In a cluster the reward's `egress` must allow the connection, and `podTemplate` gives the process the
    variable, or the folder, from a Secret.
    """

    url: Annotated[str, Field(pattern=HTTP_ADDRESS_PATTERN, max_length=1024)] = Field(
        description="Address that is called."
    )
    token_variable: Annotated[str, Field(pattern=ENV_NAME_PATTERN, max_length=256)] | None = Field(
        None,
        description="Environment variable of the reward's process with the server's token, which is sent as "
        "a bearer token; null: none is sent.",
    )
    tls_folder: Annotated[str, Field(pattern=ABSOLUTE_PATH_PATTERN, max_length=1024)] | None = Field(
        None,
        description="Folder with tls.crt and tls.key, by which the process identifies itself, with ca.crt, "
        "which signs the server's certificate, or with all of them, as in a Secret of the type "
        "kubernetes.io/tls; null: no certificate of its own, and the system's authorities.",
    )
    retries: int = Field(
        3,
        ge=0,
        le=20,
        description="Repetitions of a request that fails: no connection, no answer within timeoutSeconds, "
        "HTTP 408, 425, 429 or 5xx, or an answer that cannot be used.",
    )


class HttpReward(RewardServer):
    """A service that scores samples by kubealign's HTTP contract: docs/rewards.md."""

    samples_per_request: int = Field(1, ge=1, le=256, description="Most samples of one request.")


class JudgeScale(SpecModel):
    """Scores of a judge, from lowest to highest. The reward is (score - lowest) / (highest - lowest)."""

    lowest: float = Field(1.0, description="Score of the worst response, whose reward is 0.")
    highest: float = Field(10.0, description="Score of the best response, whose reward is 1.")

    @model_validator(mode="after")
    def _not_empty(self) -> "JudgeScale":
        """Check that the scale has more than one score."""
        if self.highest <= self.lowest:
            raise field_errors("JudgeScale", (("highest",), self.highest, SCALE_IS_EMPTY))
        return self


class PointwiseJudge(SpecModel):
    """The judge scores the response by a rubric."""

    rubric: Rubric = Field(
        "How well the response answers the prompt: correct, complete, and clear.",
        description="Criteria of a good response.",
    )
    scale: JudgeScale = Field(default_factory=JudgeScale, description="Scores that the judge may give.")


class ReferenceJudge(SpecModel):
    """The judge compares the response with the row's answer, and scores it."""

    answer_column: ShortText = Field(
        "answer",
        description="Column of the data set with the answer; a row whose value is null has no reward.",
    )
    rubric: Rubric = Field(
        "Whether the response comes to the same result as the reference answer.",
        description="Criteria of a good response.",
    )
    scale: JudgeScale = Field(default_factory=JudgeScale, description="Scores that the judge may give.")


class PairwiseJudge(SpecModel):
    """The judge prefers the response or a text of the row, in both orders: the reward is the share won.

    A tie counts as half.
    """

    baseline_column: ShortText = Field(
        description="Column of the data set with the text to compare with; a row whose value is null has no "
        "reward."
    )
    rubric: Rubric = Field(
        "Which response answers the prompt better: correct, complete, and clear.",
        description="Criteria of a good response.",
    )


class JudgeTask(SpecUnion):
    """Question to the judge."""

    pointwise: PointwiseJudge | None = Field(None, description="A score of the response alone.")
    reference: ReferenceJudge | None = Field(None, description="A score in view of the row's answer.")
    pairwise: PairwiseJudge | None = Field(None, description="A comparison with a text of the row.")

    def named_columns(self) -> dict[str, str]:
        """Return field -> column of the data set that the task needs."""
        if self.reference is not None:
            return {"reference.answerColumn": self.reference.answer_column}
        if self.pairwise is not None:
            return {"pairwise.baselineColumn": self.pairwise.baseline_column}
        return {}


#: Text with placeholders.
JudgeTemplate: TypeAlias = Annotated[
    str,
    Field(min_length=1, max_length=32768, json_schema_extra={"pattern": TEMPLATE_PATTERN}),
    AfterValidator(check_placeholders),
]


class JudgeQuestions(SpecModel):
    """Questions to a judge, and the use of its answers."""

    task: JudgeTask = Field(description="Question to the judge.")
    template: JudgeTemplate | None = Field(
        None,
        description="Message to the judge, with {prompt}, {rubric} and columns of the row in braces; "
        "pointwise and reference also {response} and {scale}, reference {answer}, pairwise {first} and "
        "{second}. It must ask for the answer's form: docs/rewards.md. null: kubealign's own.",
    )
    max_tokens: int = Field(512, ge=1, le=MAX_INT32, description="Most tokens of the judge's answer.")
    cache_entries: int = Field(
        4096,
        ge=0,
        le=1_000_000,
        description="Answers that a process keeps: the same question is not asked again. 0: none.",
    )

    @property
    def template_characters(self) -> int:
        """Most characters of a question besides the prompt, the responses and columns of the row."""
        return _OWN_TEMPLATE + len(self.task.value.rubric) if self.template is None else len(self.template)

    @property
    def template_columns(self) -> list[str]:
        """Columns of the data set that the template names."""
        names = [] if self.template is None else placeholder_names(self.template)
        return [name for name in names if name not in _ALL_PLACEHOLDERS]

    @model_validator(mode="after")
    def _fitting_template(self) -> "JudgeQuestions":
        """Check that the template has the placeholders of the task, and no other task's."""
        if self.template is None:
            return self
        names = placeholder_names(self.template)
        needed, others = JUDGE_PLACEHOLDERS[self.task.member]
        missing = [name for name in needed if name not in names]
        foreign = [name for name in names if name in _ALL_PLACEHOLDERS.difference(needed, others)]
        fault = ""
        if missing:
            fault = f"does not show {{{missing[0]}}}: put it in"
        elif foreign:
            allowed = ", ".join(f"{{{name}}}" for name in (*needed, *others))
            fault = f"has {{{foreign[0]}}}: the placeholders of {self.task.member} are {allowed}, and columns"
        if fault:
            raise field_errors(type(self).__name__, (("template",), self.template, fault))
        return self


class JudgeReward(JudgeQuestions, RewardServer):
    """A language model behind an OpenAI-compatible API (chat completions) as a judge."""

    url: Annotated[str, Field(pattern=HTTP_ADDRESS_PATTERN, max_length=1024)] = Field(
        description="Address of the API, most often with /v1 at its end; /chat/completions is added."
    )
    model: ShortText = Field(description="Name of the model.")
    temperature: float | None = Field(
        None, ge=0, description="Temperature of the judge's answers; null: the server's own."
    )
    parameters: dict[str, Any] = Field(
        default_factory=dict,
        max_length=64,
        description="Further fields of each request, such as reasoning_effort.",
    )
    requests_per_minute: int | None = Field(
        None, ge=1, le=MAX_INT32, description=f"Most requests in a minute {_PER_REPLICA}"
    )
    tokens_per_minute: int | None = Field(
        None,
        ge=1,
        le=MAX_INT32,
        description=f"Most tokens of questions and answers in a minute {_PER_REPLICA}",
    )


class PolicyJudge(JudgeQuestions):
    """The job's policy as a judge: the rollout workers answer, with the weights of the response, or later
    ones.
    """

    temperature: float = Field(
        0.0,
        ge=0,
        description="Temperature of the judgements; 0: greedy decoding. topK and topP are the rollout's.",
    )
    retries: int = Field(
        1, ge=0, le=20, description="Repetitions, with other seeds, of a judgement that cannot be used."
    )
