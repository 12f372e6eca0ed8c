"""Rows of known benchmarks, whose columns, prompts and scores are preset."""

from enum import StrEnum

from pydantic import Field

from kubealign.spec.base import MAX_INT32, SpecModel
from kubealign.spec.sections.data import DataSource


class Benchmark(StrEnum):
    """A benchmark, by the form of its rows.

    Gsm8k: as openai/gsm8k. Math500: as HuggingFaceH4/MATH-500. Ifeval: as google/IFEval. Mmlu: as cais/mmlu,
    with four choices. HumanEval: as openai/openai_humaneval. Mbpp: as google-research-datasets/mbpp.
    """

    GSM8K = "Gsm8k"
    MATH_500 = "Math500"
    IFEVAL = "Ifeval"
    MMLU = "Mmlu"
    HUMAN_EVAL = "HumanEval"
    MBPP = "Mbpp"


class BenchmarkRows(SpecModel):
    """Rows in the form of a benchmark, with its prompt, its length of responses and its score accuracy."""

    benchmark: Benchmark = Field(description="Form of the rows.")
    source: DataSource | None = Field(
        None,
        description="Source of the rows, with the columns of the benchmark; null: its test split on the "
        "Hugging Face hub.",
    )
    limit: int | None = Field(
        None, ge=1, le=MAX_INT32, description="Use only the first rows of the source, this many."
    )
