"""The SteerLM example: an attribute model learns from ratings and annotates words, and a policy generates
words with the requested attributes.
"""

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from support.running import RunningJobs

EXAMPLE = Path(__file__).parents[2] / "examples" / "steerlm"
VOWELS = "aeiou"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run all six jobs by the two commands of the example; return the folder of the runs."""
    folder = tmp_path_factory.mktemp("steerlm")
    example = folder / "example"
    shutil.copytree(EXAMPLE, example, ignore=shutil.ignore_patterns("data", "runs", "__pycache__"))
    spec = importlib.util.spec_from_file_location("steerlm_make_data", example / "make_data.py")
    assert spec is not None and spec.loader is not None
    make_data = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make_data)
    make_data.main()
    with RunningJobs(example / "jobs.yaml", folder / "runs") as run:
        assert run.end(270) == 0, run.output
    return run.runs


def rows(runs: Path, job: str) -> list[dict[str, Any]]:
    text = (runs / job / "result" / "data.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def counted(word: str) -> tuple[int, int]:
    vowels = sum(letter in VOWELS for letter in word)
    return vowels, len(word) - vowels


# One test: with two, each of two parallel workers would run the six jobs.
@pytest.mark.timeout(300)
def test_attributes_are_predicted_and_followed(runs: Path) -> None:
    check_unrated_words_are_annotated(runs)
    check_generations_have_the_requested_attributes(runs)


def check_unrated_words_are_annotated(runs: Path) -> None:
    annotated = rows(runs, "steerlm-annotate")
    assert len(annotated) == 2400
    right = [(row["vowels"], row["consonants"]) == counted(row["response"]) for row in annotated]
    assert sum(right) / len(right) > 0.8, "by chance one in twenty-five"


def check_generations_have_the_requested_attributes(runs: Path) -> None:
    vowels = [counted(row["response"]) for row in rows(runs, "steerlm-vowels")]
    consonants = [counted(row["response"]) for row in rows(runs, "steerlm-consonants")]
    assert len(vowels) == len(consonants) == 80
    mean = [[sum(pair[side] for pair in job) / 80 for side in (0, 1)] for job in (vowels, consonants)]
    # Requested are 4 vowels and 0 consonants, and 1 and 3; unconditioned words have 2 and 2 on average.
    assert mean[0][0] > 3.2 and mean[0][1] < 0.8, mean
    assert mean[1][0] < 1.8 and mean[1][1] > 2.2, mean
    # The rows contain the counts of the rewards.
    for row in rows(runs, "steerlm-vowels"):
        assert (row["reward.vowels"], row["reward.consonants"]) == counted(row["response"])
