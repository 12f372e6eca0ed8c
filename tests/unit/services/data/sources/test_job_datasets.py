"""Columns that a job's rewards and validation scores need, checked when its rows are opened."""

import json
from pathlib import Path
from typing import Any

import pytest

from kubealign.spec.job import AlignmentJob
from kubealign_services.data.errors import DataError
from kubealign_services.data.sources.job_datasets import open_datasets
from support.tiny_jobs import online_job


def write_rows(path: Path, **columns: Any) -> dict[str, Any]:
    path.write_text(json.dumps({"prompt": "p"} | columns) + "\n")
    return {"path": str(path)}


def open_job(folder: Path, **spec: Any) -> None:
    job = online_job(folder, "verified", {"rloo": {"promptsPerStep": 1, "samplesPerPrompt": 2}}, **spec)
    open_datasets(AlignmentJob.model_validate(job), folder, {})


MATH = {"name": "right", "verifier": {"math": {}}}


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    with_answer, without = (
        write_rows(tmp_path / "a.jsonl", answer="1"),
        write_rows(tmp_path / "b.jsonl", anser="1"),
    )
    open_job(tmp_path, rewards=[MATH], data={"prompts": {"source": with_answer}})
    with pytest.raises(
        DataError,
        match=r"spec\.rewards\[0\]\.verifier\.math\.answerColumn: .*no column 'answer'.*mean 'anser'",
    ):
        open_job(tmp_path, rewards=[MATH], data={"prompts": {"source": without}})
    with pytest.raises(DataError, match=r"b\.jsonl has no column 'answer'"):
        open_job(
            tmp_path,
            rewards=[MATH],
            data={"prompts": {"source": with_answer}},
            validation={"data": {"prompts": {"source": without}}},
        )


def test_both_columns_of_instructions_are_needed(tmp_path: Path) -> None:
    rewards = [{"name": "follows", "verifier": {"instructions": {}}}]
    ids = {"instruction_id_list": ["punctuation:no_comma"]}
    complete = write_rows(tmp_path / "a.jsonl", **ids, kwargs=[{}])
    open_job(tmp_path, rewards=rewards, data={"prompts": {"source": complete}})
    for columns, missing in (
        (ids, "kwargsColumn: .*'kwargs'"),
        ({"kwargs": [{}]}, "idsColumn: .*'instruction_id"),
    ):
        source = write_rows(tmp_path / "b.jsonl", **columns)
        with pytest.raises(DataError, match=rf"spec\.rewards\[0\]\.verifier\.instructions\.{missing}"):
            open_job(tmp_path, rewards=rewards, data={"prompts": {"source": source}})


def test_only_the_sources_that_the_verifier_scores_need_its_column(tmp_path: Path) -> None:
    mixture = [
        {"name": "sums", "source": write_rows(tmp_path / "a.jsonl", answer="1")},
        {"name": "poems", "source": write_rows(tmp_path / "b.jsonl", style="free")},
    ]
    style = {
        "name": "style",
        "sources": ["poems"],
        "verifier": {"regex": {"pattern": "o", "answerColumn": "style"}},
    }
    data = {"prompts": {"mixture": mixture}}
    open_job(tmp_path, rewards=[MATH | {"sources": ["sums"]}, style], data=data)
    with pytest.raises(DataError, match=r"spec\.rewards\[1\]\.verifier\.math\.answerColumn: .*b\.jsonl"):
        open_job(tmp_path, rewards=[style, MATH], data=data)


def judge(task: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"name": "j", "judge": {"url": "http://judge/v1", "model": "m", "task": task, **fields}}


def test_columns_of_judges_are_named(tmp_path: Path) -> None:
    data = {"prompts": {"source": write_rows(tmp_path / "a.jsonl", answer="1", old="2")}}
    open_job(tmp_path, rewards=[judge({"reference": {}}, template="{response}{answer}{old}")], data=data)
    for entry, path in (
        (judge({"pairwise": {"baselineColumn": "gold"}}), r"judge\.task\.pairwise\.baselineColumn: .*'gold'"),
        (judge({"pointwise": {}}, template="{response} {olde}"), r"judge\.template: .*'olde'.*mean 'old'"),
        (
            judge({"pointwise": {}}, template="{old}{gold}{response}{old}"),
            r"judge\.template: .*no column 'gold'",
        ),
    ):
        with pytest.raises(DataError, match=rf"spec\.rewards\[0\]\.{path}"):
            open_job(tmp_path, rewards=[entry], data=data)


def test_columns_of_validation_scores_are_those_of_its_rows(tmp_path: Path) -> None:
    data = {"prompts": {"source": write_rows(tmp_path / "a.jsonl", answer="1")}}

    def validation(name: str, **columns: str) -> dict[str, Any]:
        rows = {"prompts": {"source": write_rows(tmp_path / name, **columns)}}
        return {"data": rows, "sampling": {"scores": [judge({"pairwise": {"baselineColumn": "old"}})]}}

    open_job(tmp_path, data=data, validation=validation("b.jsonl", old="1"))
    path = r"spec\.validation\.sampling\.scores\[0\]\.judge\.task\.pairwise\.baselineColumn"
    with pytest.raises(DataError, match=rf"{path}: .*c\.jsonl has no column 'old'"):
        open_job(tmp_path, data=data, validation=validation("c.jsonl", answer="1"))


def test_the_column_of_the_initial_policy_is_added_to_the_rows_of_its_section_alone(tmp_path: Path) -> None:
    data = {"prompts": {"source": write_rows(tmp_path / "a.jsonl", answer="1")}}

    def validation(scored: dict[str, Any], **sampling: Any) -> dict[str, Any]:
        rows = {"prompts": {"source": write_rows(tmp_path / "b.jsonl", answer="1")}}
        return {"data": rows, "sampling": {"scores": [scored], **sampling}}

    wins = judge({"pairwise": {"baselineColumn": "old"}})
    open_job(tmp_path, data=data, validation=validation(wins, initialPolicyColumn="old"))
    shown = judge({"pointwise": {}}, template="{response} {old}")
    open_job(tmp_path, data=data, validation=validation(shown, initialPolicyColumn="old"))
    with pytest.raises(DataError, match="no column 'old'"):
        open_job(tmp_path, data=data, validation=validation(wins, initialPolicyColumn="initial"))
    path = r"spec\.validation\.sampling\.initialPolicyColumn"
    with pytest.raises(DataError, match=rf"{path}: .*b\.jsonl has a column 'answer' of its own"):
        open_job(tmp_path, data=data, validation=validation(shown, initialPolicyColumn="answer"))
    with pytest.raises(DataError, match=r"spec\.rewards\[0\]\..*no column 'old'"):
        rows = validation(shown, initialPolicyColumn="old")
        open_job(tmp_path, data=data, rewards=[wins | {"name": "w"}], validation=rows)
