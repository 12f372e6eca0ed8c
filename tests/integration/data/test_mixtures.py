"""Preparation of mixtures: rows of several sources, their names and system messages."""

import json
from pathlib import Path
from typing import Any

import pytest

from kubealign.spec.job import AlignmentJob
from kubealign_services.data.errors import DataError
from kubealign_services.data.mixture import build_row_order
from kubealign_services.data.preparation import prepare
from kubealign_services.data.prepared import DatasetReport
from support.preparing import from_config, job, rows, sft
from support.tiny_rewards import policy_folder

pytestmark = pytest.mark.timeout(300)

SUMS = [{"prompt": f"{n}+1=", "response": f"{n + 1}", "source": "file", "level": n} for n in range(6)]
WORDS = [{"prompt": "say " + word, "response": word} for word in ("yes", "no", "please and thank you")]


def entry(folder: Path, name: str, lines: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    return {"name": name} | rows(folder, lines, f"{name}.jsonl") | fields


def test_rows_of_all_sources_in_the_order_of_the_mixture(tmp_path: Path) -> None:
    mixture = [
        entry(tmp_path, "sums", SUMS, weight=3, limit=4),
        entry(tmp_path, "words", WORDS),
    ]
    given = sft({"mixture": mixture, "maxTokens": 8, "values": {"made": "x"}})
    prepared = prepare(given, tmp_path / "run", {})
    report = prepared.report.train
    assert (report.rows_read, report.rows_kept, report.sources) == (7, 6, {"sums": 4, "words": 2})
    assert report.source == f"{tmp_path}/sums.jsonl, {tmp_path}/words.jsonl"
    assert [row.row for row in prepared.train] == [0, 1, 2, 3, 0, 1]
    assert [row.columns["source"] for row in prepared.train] == ["sums"] * 4 + ["words"] * 2
    assert [row.columns.get("level") for row in prepared.train] == [0, 1, 2, 3, None, None]
    assert {row.columns["made"] for row in prepared.train} == {"x"}
    order = build_row_order(given.spec.data.value, report, given.spec.seed)
    sources = [prepared.train[draw.row].columns["source"] for draw in order.draws(0, 0, 6)]
    # Three quarters of six rows: 4.5 and 1.5; the first source gets the row that is left.
    assert (sources.count("sums"), sources.count("words")) == (5, 1)


def test_a_report_without_sources_is_read() -> None:
    fields = set(DatasetReport.model_fields) - {"sources"}
    texts = {"kind": "prompts", "source": "x", "columns_left_out": []}
    assert DatasetReport.model_validate({name: texts.get(name, 0) for name in fields}).sources == {}


def test_system_prompt_of_an_entry(tmp_path: Path) -> None:
    def messages(*texts: tuple[str, str]) -> dict[str, Any]:
        return {"messages": [{"role": role, "content": text} for role, text in texts]}

    asked = [messages(("user", "hi")), messages(("system", "own"), ("user", "hi"))]
    mixture = [
        entry(tmp_path, "with", asked, systemPrompt="new"),
        entry(tmp_path, "without", asked),
    ]
    document = {
        "algorithm": {"grpo": {"promptsPerStep": 2, "samplesPerPrompt": 2}},
        "policy": {"model": from_config(max_position_embeddings=512)},
        "data": {"prompts": {"mixture": mixture, "format": {"chat": {}}}},
        "rewards": [{"name": "r", "function": {"module": "m:f"}}],
    }
    prepared = prepare(job(document), tmp_path / "run", {})
    texts = [row.prompt_text for row in prepared.train]
    assert ["new" in text for text in texts] == [True, False, False, False]
    assert ["own" in text for text in texts] == [False, True, False, True]
    assert texts[1] == texts[3] and texts[0].index("new") < texts[0].index("hi")
    # The tokenizer of the job knows the letters of the system prompt.
    assert prepared.report.train.unknown_tokens == 0
    roles = [[message["role"] for message in row.columns["messages"]] for row in prepared.train]
    assert roles == [["system", "user"], ["system", "user"], ["user"], ["system", "user"]]


def test_errors_name_the_entry(tmp_path: Path) -> None:
    sums, words = entry(tmp_path, "sums", SUMS), entry(tmp_path, "words", WORDS)

    def error(*mixture: dict[str, Any], **fields: Any) -> str:
        with pytest.raises(DataError) as raised:
            prepare(sft({"mixture": list(mixture), **fields}), tmp_path / "run", {})
        return str(raised.value)

    missing = {"name": "lost", "source": {"path": str(tmp_path / "lost.jsonl")}}
    assert error(sums, missing).startswith(
        "spec.data.demonstrations.mixture[1].source.path: there is no file"
    )
    broken = entry(tmp_path, "broken", [*WORDS, {"prompt": "x", "response": 3}])
    assert f"{tmp_path}/broken.jsonl: row 4" in error(sums, broken)
    long = entry(tmp_path, "long", [{"prompt": "x" * 50, "response": "y"}])
    assert f"nothing is left of {tmp_path}/long.jsonl: all 1 rows were dropped" in error(
        sums, long, maxTokens=9
    )
    assert "mixture[1].weight: 0.01 of 1.01 is too little" in error(sums, words | {"weight": 0.01})
    column = {"text": {"prompt": "source"}}
    assert error(sums, words, format=column).startswith(
        "spec.data.demonstrations.format.text.prompt: the column 'source' of a mixture holds the name"
    )


def routed(folder: Path, verse: Path) -> AlignmentJob:
    """Return a job with a teacher for each of two sources, of which one is in this folder."""
    return job(
        {
            "algorithm": {"onPolicyDistillation": {}},
            "policy": {"model": {"path": str(policy_folder(folder / "policy", "0123456789+= "))}},
            "teachers": [
                {"name": "math", "model": {"path": str(policy_folder(folder / "math", "0123456789+= ", 2))}},
                {"name": "verse", "model": {"path": str(verse)}},
            ],
            "data": {
                "prompts": {
                    "mixture": [
                        entry(folder, "sums", SUMS, teacher="math"),
                        entry(folder, "more", SUMS, teacher="verse"),
                    ]
                }
            },
            "rollout": {"sampling": {"maxTokens": 4}},
        }
    )


def test_each_teacher_has_a_model_that_must_have_the_policy_s_vocabulary(tmp_path: Path) -> None:
    good = policy_folder(tmp_path / "verse", "0123456789+= ", 3)
    prepared = prepare(routed(tmp_path, good), tmp_path / "run", {})
    assert prepared.model_folder("teacher-math") == tmp_path / "math"
    assert prepared.model_folder("teacher-verse") == good
    other = routed(tmp_path, policy_folder(tmp_path / "other", "9876543210+=-"))
    with pytest.raises(DataError, match=r"spec\.teachers\[1\]\.model"):
        prepare(other, tmp_path / "fresh", {})
    with pytest.raises(DataError, match=r"another spec \(spec\.teachers\.verse\.path was .*verse"):
        prepare(other, tmp_path / "run", {})


def test_a_preparation_of_a_version_without_teachers_is_reused(tmp_path: Path) -> None:
    given = sft({"mixture": [entry(tmp_path, "words", WORDS), entry(tmp_path, "sums", SUMS)]})
    prepare(given, tmp_path / "run", {})
    path = tmp_path / "run" / "prepared" / "inputs.json"
    inputs = json.loads(path.read_text())
    del inputs["teachers"]
    for source in inputs["data"]["demonstrations"]["mixture"]:
        del source["limit"]
    path.write_text(json.dumps(inputs))
    assert prepare(given, tmp_path / "run", {}).report.train.rows_kept == 9


def test_rows_of_validation_name_their_source_where_a_reward_asks_for_it(tmp_path: Path) -> None:
    held_out = rows(tmp_path, [{"prompt": "1+1="}], "held_out.jsonl")

    def prepared_rows(name: str, **fields: Any) -> list[dict[str, Any]]:
        mixture = [entry(tmp_path, "sums", SUMS), entry(tmp_path, "words", WORDS)]
        document = {
            "algorithm": {"grpo": {"promptsPerStep": 2, "samplesPerPrompt": 2}},
            "policy": {"model": from_config(max_position_embeddings=512)},
            "data": {"prompts": {"mixture": mixture}},
            "rewards": [
                {"name": "style", "function": {"module": "m:f"}},
                {"name": "exact", "sources": ["sums"], "function": {"module": "m:f"}},
            ],
            "validation": {"data": {"prompts": held_out | fields}},
        }
        validation = prepare(job(document), tmp_path / name, {}).validation
        assert validation is not None
        return [row.columns for row in validation]

    assert prepared_rows("named", values={"source": "sums"}) == [{"source": "sums"}]
    with pytest.raises(DataError) as raised:
        prepared_rows("unnamed")
    assert str(raised.value).startswith("spec.rewards[1].sources: the reward scores the sources sums, and")
    assert "set spec.validation.data.prompts.values: {source: NAME}" in str(raised.value)
