"""Specs of iterative algorithms: in each round the policy produces the rows of the next training phase."""

from typing import Annotated, ClassVar, TypeAlias

from pydantic import AfterValidator, Field

from kubealign.spec.algorithms.base import AlgorithmSpec, Requirement
from kubealign.spec.base import MAX_INT32, SpecModel
from kubealign.spec.placeholders import placeholder_names
from kubealign.spec.regular_expressions import check_one_group


def _check_judge_prompt(template: str) -> str:
    """Check the placeholders of a judge prompt. Raises ValueError."""
    placeholders = placeholder_names(template)
    for name in placeholders:
        if name not in ("prompt", "response"):
            raise ValueError(f"contains {{{name}}}: only {{prompt}} and {{response}} are placeholders")
    if "response" not in placeholders:
        raise ValueError("does not show the response that is judged: put {response} in it")
    return template


#: Prompt for the judge.
JudgePrompt: TypeAlias = Annotated[
    str, Field(min_length=1, max_length=16384), AfterValidator(_check_judge_prompt)
]

#: Regular expression that extracts a score.
ScorePattern: TypeAlias = Annotated[
    str, Field(min_length=1, max_length=1024), AfterValidator(check_one_group)
]


class Judge(SpecModel):
    """LLM-as-a-judge: the policy scores a response by answering a prompt about it."""

    prompt: JudgePrompt = Field(description="Judge prompt, with the placeholders {prompt} and {response}.")
    pattern: ScorePattern = Field(
        r"[Ss]core: *(-?[0-9]+(?:\.[0-9]+)?)",
        description="Regular expression whose single group is the score in the judge's answer.",
    )
    samples: int = Field(
        1, ge=1, le=MAX_INT32, description="Judgements sampled per response; the score is their mean."
    )
    max_tokens: int = Field(256, ge=1, le=MAX_INT32, description="Maximum length of a judgement in tokens.")
    temperature: float = Field(
        1.0, ge=0, description="Sampling temperature of the judgements; 0: greedy decoding."
    )


class IterativeSpec(AlgorithmSpec):
    """Fields of all iterative algorithms.

    In a round, responses are sampled from the current weights, rows are built from the responses, and the
    policy is trained on the rows. The job ends after its rounds or at maxSteps.
    """

    samples: ClassVar[bool] = True

    rounds: int = Field(3, ge=1, le=MAX_INT32, description="Number of rounds.")
    prompts_per_round: int = Field(256, ge=1, le=MAX_INT32, description="Prompts per round.")
    samples_per_prompt: int = Field(1, ge=1, le=MAX_INT32, description="Responses sampled for each prompt.")
    rows_per_step: int = Field(64, ge=1, le=MAX_INT32, description="Rows per step.")
    epochs_per_round: int = Field(1, ge=1, le=MAX_INT32, description="Epochs over the rows of each round.")

    @property
    def judged_by(self) -> Judge | None:
        """Judge of the policy's own responses; None: the policy does not judge."""
        return None


class SPINSpec(IterativeSpec):
    """Self-play fine-tuning (Chen et al. 2024).

    The policy learns to prefer the demonstrations to the responses that it generated at the start of the
    round. The reference is the policy at the start of the round.
    """

    implementation: ClassVar[str | None] = "kubealign_services.algorithms.iterative.spin:SPINAlgorithm"
    data: ClassVar[str] = "demonstrations"
    reads_token_ids: ClassVar[bool] = False
    #: The first rounds of Chen et al. 2024.
    learning_rate: ClassVar[float] = 5.0e-7

    beta: float = Field(
        0.1, gt=0, description="Strength of the regularisation towards the policy at the start of the round."
    )

    @property
    def sequences_per_row(self) -> int:
        """2: a demonstration and a response."""
        return 2


class RejectionSamplingSpec(IterativeSpec):
    """Rejection sampling (Touvron et al. 2023; Dong et al. 2023, RAFT).

    The policy is fine-tuned on the responses with the highest rewards.
    """

    implementation: ClassVar[str | None] = (
        "kubealign_services.algorithms.iterative.rejection_sampling:RejectionSamplingAlgorithm"
    )
    data: ClassVar[str] = "prompts"
    rewards: ClassVar[Requirement] = Requirement.NEEDED
    runs_workflows: ClassVar[bool] = True
    #: That of supervised fine-tuning, whose loss it is.
    learning_rate: ClassVar[float] = 2.0e-5

    samples_per_prompt: int = Field(4, ge=2, le=MAX_INT32, description="Responses sampled for each prompt.")
    keep_per_prompt: int = Field(
        1, ge=1, le=MAX_INT32, description="Number of best responses kept for each prompt."
    )
    minimum_reward: float | None = Field(
        None, description="Minimum reward of a kept response; null: the best responses are always kept."
    )


class SelfRewardingSpec(IterativeSpec):
    """Self-rewarding language models (Yuan et al. 2024).

    The policy judges its own responses and learns to prefer the best to the worst response to each prompt.
    The reference is the policy at the start of the round.
    """

    implementation: ClassVar[str | None] = (
        "kubealign_services.algorithms.iterative.self_rewarding:SelfRewardingAlgorithm"
    )
    data: ClassVar[str] = "prompts"
    reads_token_ids: ClassVar[bool] = False
    #: That of DPO, whose loss it is.
    learning_rate: ClassVar[float] = 5.0e-7

    samples_per_prompt: int = Field(4, ge=2, le=MAX_INT32, description="Responses sampled for each prompt.")
    judge: Judge = Field(description="Judge of the responses.")
    beta: float = Field(
        0.1, gt=0, description="Strength of the regularisation towards the policy at the start of the round."
    )
    minimum_margin: float = Field(
        0.0,
        ge=0,
        description="Prompts whose best and worst scores differ by this much or less produce no pair.",
    )

    @property
    def sequences_per_row(self) -> int:
        """2: the best and the worst response."""
        return 2

    @property
    def judged_by(self) -> Judge:
        """Judge of the policy's own responses."""
        return self.judge
