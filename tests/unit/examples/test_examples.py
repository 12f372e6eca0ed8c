"""Code of the examples: data sets, rewards, and validity of the jobs."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from transformers.utils import get_json_schema

from kubealign.local.run_dir.spec_diff import job_document
from kubealign.spec.loading.loader import load_jobs

EXAMPLES = Path(__file__).parents[3] / "examples"


def module(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.replace("/", "_").removesuffix(".py"), EXAMPLES / path)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


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


def test_splits_share_no_problem(data: Path) -> None:
    prompts = {path.stem: {row["prompt"] for row in rows(path)} for path in data.iterdir()}
    assert prompts["preferences"] == prompts["prompts"]
    assert prompts["held_preferences"] == prompts["held"]
    parts = [prompts[name] for name in ("test", "held", "sft", "prompts")]
    assert [len(part) for part in parts] == [1000, 500, 3300, 3300]
    assert len(set.union(*parts)) == 8100


def test_chosen_and_rejected_responses_match_their_kind(data: Path) -> None:
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


def test_preferred_letters_are_in_order_and_splits_share_no_prompt(tmp_path: Path) -> None:
    make, measure = module("preference/make_data.py").make, module("preference/rewards.py").in_order
    make(1, tmp_path / "one")
    make(1, tmp_path / "again")
    rows_by_file = {path.stem: rows(path) for path in (tmp_path / "one").iterdir()}
    for path in (tmp_path / "one").iterdir():
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes()
    prompts = [{row["prompt"] for row in rows_by_file[name]} for name in ("sft", "pairs", "held_pairs")]
    assert [len(part) for part in prompts] == [740, 740, 200] and len(set.union(*prompts)) == 1680
    for row in rows_by_file["pairs"]:
        assert measure([row["prompt"]] * 2, [row["chosen"], row["rejected"]]) == [1, 0]
        assert row["chosenRating"] == 1 > row["rejectedRating"]
    singles = rows_by_file["singles"]
    right = measure([row["prompt"] for row in singles], [row["response"] for row in singles])
    assert right == [float(row["label"]) for row in singles]
    assert sum(right) / len(right) == pytest.approx(0.5, abs=0.05)
    shown = rows_by_file["sft"]
    imitated = measure([row["prompt"] for row in shown], [row["response"] for row in shown])
    assert sum(imitated) / len(imitated) == pytest.approx(0.5, abs=0.05)


def test_rewards_of_sums() -> None:
    measures = module("arithmetic/rewards.py")
    responses = ["83", "70+13=83", "60+13=83", "70+13=82", "70+13=", "", "183"]
    columns = {"answer": ["83"] * 7, "worked": ["70+13=83"] * 7, "kind": [None] * 7}
    assert measures.exact(["46+37="] * 7, responses, **columns) == [1, 1, 1, 0, 0, 0, 0]
    assert measures.preferred(["46+37="] * 7, responses, **columns) == [0, 1, 0, 0, 0, 0, 0]


def test_rewards_of_word_problems() -> None:
    rewards = module("gsm8k/rewards.py")
    responses = ["so 1,000\n#### 1,000", "#### 1000.0", "1000", "#### 7\n#### $1000", "#### 10", ""]
    answer = ["2 * 500 = 1,000\n#### 1,000"] * 6
    assert rewards.exact(["?"] * 6, responses, answer=answer) == [1, 1, 0, 1, 0, 0]
    # 0.5 for the closing line; 2, 1, 1, 2, 1, 0 sixteenths for the numbers; a quarter of the share of
    # distinct words, which is 3 of 4 where "1,000" or "####" occurs twice.
    forms = [0.8125, 0.8125, 0.3125, 0.8125, 0.8125, 0]
    assert rewards.form(["?"] * 6, responses, answer=answer) == forms


@pytest.mark.parametrize(
    ("file", "count"),
    [
        ("agents/verifiers/jobs.yaml", 1),
        ("arithmetic/jobs.yaml", 3),
        ("gsm8k/jobs.yaml", 5),
        ("lora/jobs.yaml", 4),
        ("preference/jobs.yaml", 7),
        ("distillation/jobs.yaml", 4),
        ("plugin/jobs.yaml", 2),
        ("rounds/jobs.yaml", 4),
        ("reinforcement/jobs.yaml", 12),
        ("steerlm/jobs.yaml", 6),
        ("constitutional/jobs.yaml", 6),
        ("smollm2/jobs.yaml", 1),
        *(
            (f"smollm2/recipes/{path.name}", 2 if path.name == "tool-calls.yaml" else 1)
            for path in sorted((EXAMPLES / "smollm2/recipes").glob("*.yaml"))
        ),
    ],
)
def test_jobs_are_valid(file: str, count: int, tmp_path: Path) -> None:
    path = EXAMPLES / file
    parameters = {"DATA": str(tmp_path)} if "${DATA}" in path.read_text() else {}
    assert len(load_jobs(path, parameters)) == count


@pytest.mark.parametrize(
    ("response", "is_right"),
    [("12 + 30 = 42.", True), ("42 or 43", False), ("forty-two", False), ("0042", False)],
)
def test_last_number_of_a_sum_is_the_answer(response: str, is_right: bool) -> None:
    rewards = module("smollm2/rewards.py")
    assert rewards.right(["?"], [response], answer=["42"]) == [float(is_right)]


def test_pairs_of_conversations_are_held_out_by_question(tmp_path: Path) -> None:
    pairs = [
        {"prompt": f"How much is {i}?", "chosen": f"It is {i}.", "rejected": "I know."} for i in range(60)
    ]
    pairs[7] |= {"rejected": "x" * 701}
    source = tmp_path / "preferences.jsonl"
    source.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    module("smollm2/recipes/make_pairs.py").make_pairs(source, tmp_path)
    for name in ("preferences", "demonstrations", "prompts"):
        trained, held = rows(tmp_path / f"{name}.jsonl"), rows(tmp_path / f"held_{name}.jsonl")
        assert (len(trained), len(held)) == (11, 48)
        messages = [row.get("messages") or row["chosen"] for row in (*trained, *held)]
        questions = [each[0]["content"] for each in messages]
        assert sorted(questions) == sorted(pair["prompt"] for i, pair in enumerate(pairs) if i != 7)
    for row in rows(tmp_path / "held_preferences.jsonl"):
        number = row["chosen"][0]["content"].removeprefix("How much is ").removesuffix("?")
        assert row["chosen"][1] == {"role": "assistant", "content": f"It is {number}."}
        assert row["rejected"][1] == {"role": "assistant", "content": "I know."}
    with_answers = rows(tmp_path / "held_demonstrations.jsonl")
    assert [row["messages"] for row in with_answers] == [
        row["chosen"] for row in rows(tmp_path / "held_preferences.jsonl")
    ]


def test_products_are_held_out_and_demonstrated_with_the_tool_of_the_job(tmp_path: Path) -> None:
    module("smollm2/recipes/make_products.py").make_products(tmp_path)
    names = ("demonstrations", "prompts", "held")
    demonstrations, prompts, held = (rows(tmp_path / f"{name}.jsonl") for name in names)
    questions = [row["messages"][0]["content"] for row in (*demonstrations, *prompts, *held)]
    assert len(questions) == len({*questions}) == 89 * 89
    assert (len(demonstrations), len(held)) == (256, 64)
    path = EXAMPLES / "smollm2/recipes/tool-calls.yaml"
    demonstrating, _ = load_jobs(path, {})
    multiply = module("smollm2/recipes/tools.py").multiply
    assert demonstrating.spec.data.value.values["tools"] == [get_json_schema(multiply)]
    for row in demonstrations:
        question, call, result, answer = row["messages"]
        arguments = call["tool_calls"][0]["function"]["arguments"]
        assert question["content"] == "What is {a} times {b}?".format(**arguments)
        assert result["content"] == answer["content"] == row["answer"] == str(multiply(**arguments))


def test_rewards_of_the_iterative_example(tmp_path: Path) -> None:
    module("rounds/make_data.py").make(1, tmp_path)
    measures = module("rounds/rewards.py")
    shown = rows(tmp_path / "demonstrations.jsonl")
    prompts, responses = ([row[name] for row in shown] for name in ("prompt", "response"))
    assert measures.wanted(prompts, responses) == [1.0] * 48
    assert measures.wanted(["bda>"] * 3, ["aab", "aaaa", ""]) == pytest.approx([2 / 3, 0, 0])
    assert measures.letter_a(["bda>"] * 3, ["aab", "aaaa", "bcd"]) == pytest.approx([2 / 3, 0, 0])
    held_out = [row["prompt"] for row in rows(tmp_path / "held.jsonl")]
    assert len({*prompts, *held_out}) == 64
    start = rows(tmp_path / "start.jsonl")
    assert not any(row["prompt"] in held_out for row in start)
    judged = [row for row in start if row["prompt"].endswith("=")]
    assert all(row["response"] == str(row["prompt"].count("a")) for row in judged)


def test_constitution_splits_are_disjoint(tmp_path: Path) -> None:
    module("constitutional/make_data.py").make(1, tmp_path)
    measures = module("constitutional/rewards.py")
    taught = rows(tmp_path / "taught.jsonl")
    words = {
        name: {row["prompt"][:2] for row in rows(tmp_path / f"{name}.jsonl")} for name in ("prompts", "held")
    }
    words["taught"] = {row["prompt"][:2] for row in taught}
    assert [len(words[name]) for name in ("taught", "prompts", "held")] == [70, 50, 24]
    assert len(set.union(*words.values())) == 144
    answers = [row for row in taught if row["prompt"][2:] == "?"]
    prompts, responses = ([row[name] for row in answers] for name in ("prompt", "response"))
    assert measures.right(prompts, responses) == [1.0] * 140
    assert sum(measures.calm(prompts, responses)) == 70
    assert measures.right(["ab?"] * 4, ["ab.", "ab", "ac.", ""]) == [1, 0, 0, 0]
    judged = {row["prompt"]: row["response"] for row in taught if "more calm" in row["prompt"]}
    assert all(
        (prompt.index("!") > prompt.index(" B:")) == (answer == "A") for prompt, answer in judged.items()
    )


#: Fields that differ: locations of data, rewards and results, and pod templates.
PLACES = ("source.path", "source.volume", "function.", "checkpoint.volume", "podTemplate")


def test_cluster_and_local_jobs_are_equal(tmp_path: Path) -> None:
    local = load_jobs(EXAMPLES / "arithmetic/jobs.yaml", {"DATA": str(tmp_path)})
    cluster = load_jobs(EXAMPLES / "arithmetic/cluster.yaml", {})
    for job, same in zip(local, cluster, strict=True):
        left, right = flat(job_document(job)), flat(job_document(same))
        differing = [key for key in left.keys() | right.keys() if left.get(key) != right.get(key)]
        assert [key for key in differing if not any(location in key for location in PLACES)] == []
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
    """Return dotted path -> value of every set field."""
    if isinstance(value, dict):
        parts = [(f"{path}.{name}", part) for name, part in value.items()]
    elif isinstance(value, list):
        parts = [(f"{path}.{index}", part) for index, part in enumerate(value)]
    else:
        return {} if value is None else {path: value}
    return {key: field for part_path, part in parts for key, field in flat(part, part_path).items()}
