"""Presets of benchmarks: rows in the published form become prompts with a score of right and wrong."""

import json
from pathlib import Path
from typing import Any

import pytest

from kubealign.cli.views.preset_text import preset_texts
from kubealign.spec.benchmark_rows import Benchmark
from kubealign.spec.job import AlignmentJob
from kubealign_services.data.preparation import prepare
from kubealign_services.data.prepared import PreparedJob
from kubealign_services.scoring.verifiers.contract import BatchVerifier
from kubealign_services.scoring.verifiers.factory import make_verifier
from support.preparing import from_config, job, rows

pytestmark = pytest.mark.timeout(180)

GSM8K = Path(__file__).parents[4] / "shared" / "data" / "gsm8k" / "train.jsonl"
BOXED = "\n\nPlease reason step by step, and put your final answer within \\boxed{}."

#: Benchmark -> a row in the published form, parts of its prompt, a right response and a wrong one.
CASES: dict[Benchmark, tuple[dict[str, Any], list[str], str, str]] = {
    Benchmark.GSM8K: (
        {"question": "Tom has 3 nets of 4 balls. How many balls?", "answer": "3*4=<<3*4=12>>12\n#### 12"},
        ["Tom has 3 nets of 4 balls. How many balls?" + BOXED],
        r"Three times four is \boxed{12}.",
        r"Three and four are \boxed{7}.",
    ),
    Benchmark.MATH_500: (
        {
            "problem": r"Compute $\frac{3}{4} \cdot \frac{2}{3}$.",
            "solution": r"It is $\boxed{\frac{1}{2}}$.",
            "answer": r"\frac{1}{2}",
            "subject": "Prealgebra",
            "level": 1,
            "unique_id": "test/prealgebra/1.json",
        },
        [r"Compute $\frac{3}{4} \cdot \frac{2}{3}$." + BOXED],
        r"So it is $\boxed{0.5}$.",
        r"So it is $\boxed{2}$.",
    ),
    Benchmark.IFEVAL: (
        {
            "key": 1000,
            "prompt": "Describe a river without any commas, and end with the words The end.",
            "instruction_id_list": ["punctuation:no_comma", "startend:end_checker"],
            "kwargs": [{"end_phrase": None}, {"end_phrase": "The end."}],
        },
        ["Describe a river without any commas, and end with the words The end."],
        "The river is wide. The end.",
        "The river is wide, and slow. The end.",
    ),
    Benchmark.MMLU: (
        {"question": "Which is even?", "subject": "numbers", "choices": ["7", "9", "4", "1"], "answer": 2},
        ["one of ABCD.", "\n\nWhich is even?\n\nA) 7\nB) 9\nC) 4\nD) 1"],
        "Four can be halved.\nAnswer: C",
        "Two can be halved.\nAnswer: B",
    ),
    Benchmark.HUMAN_EVAL: (
        {
            "task_id": "HumanEval/0",
            "prompt": 'from typing import List\n\n\ndef total(values: List[int]) -> int:\n    """Sum."""\n',
            "canonical_solution": "    return sum(values)\n",
            "test": "def check(candidate):\n"
            "    assert candidate([1, 2]) == 3\n    assert candidate([]) == 0\n",
            "entry_point": "total",
        },
        ["fully implement the function", 'def total(values: List[int]) -> int:\n    """Sum."""\n'],
        "```python\ndef total(values: List[int]) -> int:\n    return sum(values)\n```",
        "```python\ndef total(values: List[int]) -> int:\n    return max(values)\n```",
    ),
    Benchmark.MBPP: (
        {
            "task_id": 11,
            "text": "Write a function to double a number.",
            "code": "def double(n):\n    return 2 * n",
            "test_list": ["assert double(3) == limit", "assert double(0) == 0"],
            "test_setup_code": "limit = 6",
            "challenge_test_list": [],
        },
        [
            "your task: Write a function to double a number.",
            "assert double(3) == limit\nassert double(0) == 0",
        ],
        "```python\ndef double(n):\n    return n + n\n```",
        "```python\ndef double(n):\n    return n * n\n```",
    ),
}


def benchmark_job(train: dict[str, Any], **sets: dict[str, Any]) -> AlignmentJob:
    return job(
        {
            "algorithm": {"rloo": {"promptsPerStep": 1, "samplesPerPrompt": 2}},
            "policy": {"model": from_config(max_position_embeddings=8192)},
            "data": {"prompts": train},
            "rewards": [{"name": "short", "verifier": {"repetition": {}}}],
            "validation": {"sets": [{"name": name} | fields for name, fields in sets.items()]},
        }
    )


def preset(source: dict[str, Any], benchmark: Benchmark, **fields: Any) -> dict[str, Any]:
    return {"preset": {"benchmark": benchmark.value} | source | fields}


def training_rows(folder: Path) -> dict[str, Any]:
    """Return rows whose tokenizer knows every character of the cases."""
    alphabet = "".join(sorted(set("".join(json.dumps(case[0]) for case in CASES.values()) + BOXED)))
    printable = "".join(chr(code) for code in range(32, 127)) + "\n"
    return rows(folder, [{"prompt": alphabet + printable}])


def accuracy(spec: AlignmentJob, prepared: PreparedJob, response: str) -> float | None:
    """Return the score of a response to the first row of the only set."""
    (held_out,) = spec.spec.held_out_rows
    (score,) = held_out.scores
    assert score.verifier is not None
    (row, *_) = prepared.validation_sets[str(held_out.name)]
    verifier = make_verifier(score.verifier)
    if isinstance(verifier, BatchVerifier):
        return verifier.score_all([response], [row.columns])[0].reward
    return verifier.score(response, row.columns).reward


@pytest.mark.parametrize("benchmark", CASES)
def test_rows_of_a_benchmark_are_prompts_with_a_score(tmp_path: Path, benchmark: Benchmark) -> None:
    row, parts, right, wrong = CASES[benchmark]
    source = rows(tmp_path, [row], "benchmark.jsonl")
    spec = benchmark_job(training_rows(tmp_path), bench=preset(source, benchmark))
    prepared = prepare(spec, tmp_path / "run", {})
    (prompt,) = [each.prompt_text for each in prepared.validation_sets["bench"]]
    for part in parts:
        assert part in prompt, prompt
    assert accuracy(spec, prepared, right) == 1
    assert accuracy(spec, prepared, wrong) == 0
    (held_out,) = spec.spec.held_out_rows
    assert held_out.score_metrics() == {"bench-accuracy": "val/bench/accuracy"}


def test_real_rows_of_gsm8k(tmp_path: Path) -> None:
    if not GSM8K.exists():
        pytest.skip(f"the GSM8K rows are not at {GSM8K}")
    source = {"source": {"path": str(GSM8K)}}
    train = {"source": {"path": str(GSM8K)}, "format": {"text": {"prompt": "question"}}}
    spec = benchmark_job(train, gsm8k=preset(source, Benchmark.GSM8K, limit=50))
    prepared = prepare(spec, tmp_path / "run", {})
    held_out = prepared.validation_sets["gsm8k"]
    assert len(held_out) == 50 and BOXED.strip() in held_out[0].prompt_text
    assert accuracy(spec, prepared, r"She sold 48 + 24 = \boxed{72} clips.") == 1
    assert accuracy(spec, prepared, r"She sold \boxed{48} clips.") == 0


def test_two_lines_name_the_rows_of_the_hub_and_the_expansion_is_shown(tmp_path: Path) -> None:
    spec = benchmark_job(training_rows(tmp_path), math=preset({}, Benchmark.MATH_500))
    (text,) = preset_texts(spec)
    for line in (
        "spec.validation.sets[0].preset of job stands for:",
        "name: HuggingFaceH4/MATH-500",
        "split: test",
        "messages: problem",
        "maxTokens: 4096",
        "temperature: 0.0",
        "name: accuracy",
    ):
        assert line in text, text


def test_the_sampling_of_a_set_is_its_own(tmp_path: Path) -> None:
    sampling = {"samplesPerPrompt": 4, "passAt": [4], "temperature": 0.6}
    own = {"name": "short", "verifier": {"repetition": {}}}
    given = preset({}, Benchmark.GSM8K) | {"sampling": sampling | {"scores": [own]}}
    longer = preset({}, Benchmark.GSM8K) | {"sampling": sampling | {"maxTokens": 5000}}
    first, second = benchmark_job(training_rows(tmp_path), a=given, b=longer).spec.held_out_rows
    assert first.sampling is not None and second.sampling is not None
    assert (first.sampling.samples_per_prompt, first.sampling.temperature) == (4, 0.6)
    assert [score.name for score in first.sampling.scores] == ["accuracy", "short"]
    assert (first.sampling.max_tokens, second.sampling.max_tokens) == (1024, 5000)
