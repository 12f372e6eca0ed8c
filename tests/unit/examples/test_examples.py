"""The examples' own code: the data are what they say, the measures measure, the jobs are valid."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kubealign.local.spec_change import document
from kubealign.spec.load import load_jobs

EXAMPLES = Path(__file__).parents[3] / "examples"


def module(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.replace("/", "_").removesuffix(".py"), EXAMPLES / path)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("arithmetic")
    module("arithmetic/make_data.py").make(3, folder)
    return folder


def test_the_same_seed_makes_the_same_files(data: Path, tmp_path: Path) -> None:
    make = module("arithmetic/make_data.py").make
    make(3, tmp_path / "again")
    make(4, tmp_path / "other")
    for path in data.iterdir():
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes()
        assert (tmp_path / "other" / path.name).read_bytes() != path.read_bytes()


def test_no_problem_is_in_two_parts(data: Path) -> None:
    prompts = {path.stem: {row["prompt"] for row in rows(path)} for path in data.iterdir()}
    assert prompts["preferences"] == prompts["prompts"]
    assert prompts["held_preferences"] == prompts["held"]
    parts = [prompts[name] for name in ("test", "held", "sft", "prompts")]
    assert [len(part) for part in parts] == [1000, 500, 3300, 3300]
    assert len(set.union(*parts)) == 8100


def test_chosen_is_worked_and_right_and_rejected_is_what_its_kind_says(data: Path) -> None:
    measures = module("arithmetic/rewards.py")
    for name in ("preferences", "held_preferences"):
        shares: dict[str, int] = {}
        for row in rows(data / f"{name}.jsonl"):
            a, b = row["prompt"].removesuffix("=").split("+")
            answer = str(int(a) + int(b))
            tens = int(a[0]) * 10 + int(b[0]) * 10
            worked = f"{tens}+{int(a[1]) + int(b[1])}={answer}"
            assert row["chosen"] == worked
            rejected, kind = row["rejected"], row["kind"]
            assert rejected != worked
            assert (rejected == answer) == (kind == "bare-right")
            assert kind != "bare-wrong" or (rejected.isdigit() and rejected != answer)
            if kind == "worked-wrong":
                left, right = rejected.split("=")
                assert all(part.isdigit() for part in [right, *left.split("+")])
            assert measures.preferred([row["prompt"]], [rejected], worked=[worked], answer=[answer]) == [0.0]
            shares[kind] = shares.get(kind, 0) + 1
        assert shares["worked-wrong"] / sum(shares.values()) == pytest.approx(0.5, abs=0.05)


def test_measures_of_sums() -> None:
    measures = module("arithmetic/rewards.py")
    responses = ["83", "70+13=83", "60+13=83", "70+13=82", "70+13=", "", "183"]
    columns = {"answer": ["83"] * 7, "worked": ["70+13=83"] * 7, "kind": [None] * 7}
    assert measures.exact(["46+37="] * 7, responses, **columns) == [1, 1, 1, 0, 0, 0, 0]
    assert measures.preferred(["46+37="] * 7, responses, **columns) == [0, 1, 0, 0, 0, 0, 0]


def test_measures_of_word_problems() -> None:
    rewards = module("gsm8k/rewards.py")
    responses = ["so 1,000\n#### 1,000", "#### 1000.0", "1000", "#### 7\n#### $1000", "#### 10", ""]
    answer = ["2 * 500 = 1,000\n#### 1,000"] * 6
    assert rewards.exact(["?"] * 6, responses, answer=answer) == [1, 1, 0, 1, 0, 0]
    # Closing 0.5; numbers 2, 1, 1, 2, 1, 0 sixteenths; a quarter of the distinct words' share, 3 of 4
    # where "1,000" or "####" is said twice.
    forms = [0.8125, 0.8125, 0.3125, 0.8125, 0.8125, 0]
    assert rewards.form(["?"] * 6, responses, answer=answer) == forms


@pytest.mark.parametrize(("file", "count"), [("arithmetic/jobs.yaml", 3), ("gsm8k/jobs.yaml", 5)])
def test_jobs_are_valid(file: str, count: int, tmp_path: Path) -> None:
    jobs = load_jobs(EXAMPLES / file, {"DATA": str(tmp_path)})
    assert len(jobs) == count


#: Where data, measures and results lie, and what pods ask for.
PLACES = ("source.path", "source.volume", "function.", "checkpoint.volume", "podTemplate")


def test_the_jobs_of_a_cluster_are_those_of_one_machine(tmp_path: Path) -> None:
    local = load_jobs(EXAMPLES / "arithmetic/jobs.yaml", {"DATA": str(tmp_path)})
    cluster = load_jobs(EXAMPLES / "arithmetic/cluster.yaml", {})
    for job, same in zip(local, cluster, strict=True):
        left, right = flat(document(job)), flat(document(same))
        differing = [key for key in left.keys() | right.keys() if left.get(key) != right.get(key)]
        assert [key for key in differing if not any(place in key for place in PLACES)] == []
        files = {key: Path(value).name for key, value in left.items() if key.endswith("source.path")}
        assert (
            files
            and {
                key.replace("source.volume.path", "source.path"): Path(value).name
                for key, value in right.items()
                if key.endswith("source.volume.path")
            }
            == files
        )


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Dotted path -> what is set there."""
    if isinstance(value, dict):
        parts = [(f"{path}.{name}", part) for name, part in value.items()]
    elif isinstance(value, list):
        parts = [(f"{path}.{index}", part) for index, part in enumerate(value)]
    else:
        return {} if value is None else {path: value}
    return {key: held for place, part in parts for key, held in flat(part, place).items()}
