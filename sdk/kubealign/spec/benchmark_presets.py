"""Data and sampling that stand for the rows of a known benchmark. Pure."""

from dataclasses import dataclass

from kubealign.spec.benchmark_rows import Benchmark, BenchmarkRows
from kubealign.spec.sections.code_verifier import CodeVerifier
from kubealign.spec.sections.data import (
    Data,
    DataSource,
    HuggingFaceDataset,
    PromptDataset,
    PromptFormat,
    PromptMessages,
)
from kubealign.spec.sections.validation import PRESET_SCORE, ValidationSampling, ValidationScore
from kubealign.spec.sections.verifiers import (
    InstructionsVerifier,
    MathVerifier,
    MultipleChoiceVerifier,
    Verifier,
)

#: Time that the programs of a response may take, and that a call of the verifier may take for one.
_CODE_SECONDS, _CODE_TIMEOUT_SECONDS = 20.0, 60.0

_BOXED = "{prompt}\n\nPlease reason step by step, and put your final answer within \\boxed{{}}."


@dataclass(frozen=True)
class _Preset:
    """Rows of a benchmark on the hub, and their measurement.

    prompt: column of the user's message. template: published instruction with the prompt; None: the prompt
    alone. max_tokens: most tokens of a response.
    """

    rows: HuggingFaceDataset
    prompt: str
    template: str | None
    max_tokens: int
    verifier: Verifier


_PRESETS = {
    # The instruction is the one of Qwen2.5-Math and DeepSeek-R1.
    Benchmark.GSM8K: _Preset(
        HuggingFaceDataset(name="openai/gsm8k", config="main", split="test"),
        "question",
        _BOXED,
        1024,
        Verifier(math=MathVerifier(answer_column="answer")),
    ),
    Benchmark.MATH_500: _Preset(
        HuggingFaceDataset(name="HuggingFaceH4/MATH-500", split="test"),
        "problem",
        _BOXED,
        4096,
        Verifier(math=MathVerifier(answer_column="answer")),
    ),
    # Prompts of IFEval are complete; 1,280 tokens are those of lm-evaluation-harness.
    Benchmark.IFEVAL: _Preset(
        HuggingFaceDataset(name="google/IFEval", split="train"),
        "prompt",
        None,
        1280,
        Verifier(instructions=InstructionsVerifier()),
    ),
    # The instruction is the one of OpenAI's simple-evals.
    Benchmark.MMLU: _Preset(
        HuggingFaceDataset(name="cais/mmlu", config="all", split="test"),
        "question",
        "Answer the following multiple choice question. The last line of your response should be of the "
        "following format: 'Answer: $LETTER' (without quotes) where LETTER is one of ABCD. Think step by "
        "step before answering.\n\n{prompt}\n\n{choices:lettered}",
        2048,
        Verifier(multiple_choice=MultipleChoiceVerifier(answer_column="answer")),
    ),
    # The instruction is the one of OpenAI's simple-evals.
    Benchmark.HUMAN_EVAL: _Preset(
        HuggingFaceDataset(name="openai/openai_humaneval", split="test"),
        "prompt",
        "Read the following function signature and docstring, and fully implement the function described. "
        "Your response should only contain the code for this function.\n\n{prompt}",
        1024,
        Verifier(
            code=CodeVerifier(
                tests_column="test",
                prefix_column="prompt",
                entry_point_column="entry_point",
                seconds_per_response=_CODE_SECONDS,
            )
        ),
    ),
    # The instruction is the one of Austin et al. (2021).
    Benchmark.MBPP: _Preset(
        HuggingFaceDataset(name="google-research-datasets/mbpp", config="full", split="test"),
        "text",
        "You are an expert Python programmer, and here is your task: {prompt} Your code should pass these "
        "tests:\n\n{test_list}",
        1024,
        Verifier(
            code=CodeVerifier(
                tests_column="test_list",
                setup_column="test_setup_code",
                seconds_per_response=_CODE_SECONDS,
            )
        ),
    ),
}


def preset_data(rows: BenchmarkRows) -> Data:
    """Return the data of the rows: one message of the user each, in the published form."""
    preset = _PRESETS[rows.benchmark]
    return Data(
        prompts=PromptDataset(
            source=rows.source or DataSource(hugging_face=preset.rows),
            format=PromptFormat(chat=PromptMessages(messages=preset.prompt)),
            template=preset.template,
            limit=rows.limit,
        )
    )


def preset_sampling(rows: BenchmarkRows, sampling: ValidationSampling | None) -> ValidationSampling:
    """Return the sampling of the responses: the given one with the benchmark's score first, and its length
    unless maxTokens is set.

    Args:
        sampling: Sampling of the spec; None: one response by greedy decoding.
    """
    preset = _PRESETS[rows.benchmark]
    timeout = _CODE_TIMEOUT_SECONDS if preset.verifier.code is not None else 30.0
    score = ValidationScore(name=PRESET_SCORE, verifier=preset.verifier, timeout_seconds=timeout)
    given = ValidationSampling(temperature=0.0) if sampling is None else sampling
    return given.model_copy(
        update={
            "max_tokens": given.max_tokens or preset.max_tokens,
            "scores": [score, *given.scores],
        }
    )
