"""Hinted prompts of a teacher, written with the rows: their tokens, their room and unusable rows."""

from pathlib import Path
from typing import Any

import pytest

from kubealign_services.data.errors import DataError
from kubealign_services.data.preparation import prepare
from support.preparing import from_config, job, rows

pytestmark = pytest.mark.timeout(120)

SUMS: list[dict[str, Any]] = [{"prompt": f"{n}+1=", "answer": n + 1} for n in range(9)]
HINT = {"template": "{prompt} [{answer}]"}


def distillation(data: dict[str, Any], hint: dict[str, Any] | None = HINT, max_tokens: int = 8) -> Any:
    return job(
        {
            "algorithm": {"onPolicyDistillation": {"hint": hint}},
            "policy": {"model": from_config()},
            "data": {"prompts": data},
            "rollout": {"sampling": {"maxTokens": max_tokens}},
        }
        | ({} if hint else {"reference": {"model": from_config()}})
    )


def test_text_prompts(tmp_path: Path) -> None:
    prepared = prepare(distillation(rows(tmp_path, SUMS)), tmp_path / "run", {})
    tokenizer = prepared.tokenizer
    for number, row in enumerate(prepared.train):
        assert tokenizer.decode(row.prompt_tokens).endswith(f"{number}+1=")
        assert row.teacher_prompt_tokens is not None
        # The tokenizer was trained on the hints too; both prompts begin as every text begins.
        hinted = tokenizer.decode(row.teacher_prompt_tokens, clean_up_tokenization_spaces=False)
        assert hinted.endswith(f"{number}+1= [{number + 1}]")
        assert tokenizer.decode(row.prompt_tokens).removesuffix(f"{number}+1=") == hinted.removesuffix(
            f"{number}+1= [{number + 1}]"
        )
    report = prepared.report.train
    assert report.rows_kept == 9 and report.dropped == report.dropped_hints == report.unknown_tokens == 0
    lengths = [len(row.teacher_prompt_tokens or ()) for row in prepared.train]
    assert report.longest_teacher_prompt == max(lengths)


def test_chat_prompts(tmp_path: Path) -> None:
    lines = [
        {"messages": [{"role": "user", "content": row["prompt"]}], "answer": row["answer"]} for row in SUMS
    ]
    data = rows(tmp_path, lines) | {"format": {"chat": {}}}
    for message, start in {
        "User": "User:\n0+1= [1]\n\nAssistant:\n",
        "System": "System:\n0+1= [1]\n\nUser:\n0+1=\n\nAssistant:\n",
    }.items():
        given = distillation(data, HINT | {"message": message})
        prepared = prepare(given, tmp_path / message, {})
        row, tokenizer = prepared.train[0], prepared.tokenizer
        assert row.teacher_prompt_tokens is not None
        assert tokenizer.decode(row.teacher_prompt_tokens, clean_up_tokenization_spaces=False) == start
        assert tokenizer.decode(row.prompt_tokens) == "User:\n0+1=\n\nAssistant:\n"


def test_hinted_prompts_beyond_the_context(tmp_path: Path) -> None:
    """The context is 64 tokens, of which a response takes 8; a hinted prompt is never truncated."""
    lines = [row | {"answer": "x" * (60 if index == 4 else 3)} for index, row in enumerate(SUMS)]
    for overlong in ("Drop", "Truncate"):
        data = rows(tmp_path, lines) | {"overlong": overlong}
        prepared = prepare(distillation(data), tmp_path / overlong, {})
        report = prepared.report.train
        assert (report.rows_kept, report.dropped, report.dropped_hints) == (8, 1, 1)
        assert [row.row for row in prepared.train] == [0, 1, 2, 3, 5, 6, 7, 8]
    problem = r"row 5 is too long: a prompt of \d+ tokens with its hint; there is room for 56"
    with pytest.raises(DataError, match=problem):
        prepare(distillation(rows(tmp_path, lines) | {"overlong": "Fail"}), tmp_path / "fail", {})
    # The bound on the policy's prompts is not one of the teacher's.
    data = rows(tmp_path, SUMS) | {"maxTokens": 5}
    assert prepare(distillation(data), tmp_path / "bounded", {}).report.train.dropped == 0
    longest = [row | {"answer": "x" * 60} for row in SUMS]
    with pytest.raises(DataError, match="56 in a prompt with its hint: 9 rows have more"):
        prepare(distillation(rows(tmp_path, longest)), tmp_path / "nothing", {})


def test_rows_without_a_hint_are_refused(tmp_path: Path) -> None:
    lines = [{"prompt": row["prompt"]} for row in SUMS]
    problem = r"hint\.template: \{answer\} is no column; there are 'prompt'"
    with pytest.raises(DataError, match=rf"spec\.algorithm\.onPolicyDistillation\.{problem}"):
        prepare(distillation(rows(tmp_path, lines)), tmp_path / "column", {})
    lines = [row | {"answer": None if index == 6 else row["answer"]} for index, row in enumerate(SUMS)]
    with pytest.raises(DataError, match="row 7: column 'answer' holds None"):
        prepare(distillation(rows(tmp_path, lines)), tmp_path / "null", {})


def test_a_preparation_with_another_hint_is_not_reused(tmp_path: Path) -> None:
    data = rows(tmp_path, SUMS)
    prepare(distillation(data), tmp_path / "run", {})
    with pytest.raises(DataError, match="made for another spec"):
        prepare(distillation(data, {"template": "{answer}: {prompt}"}), tmp_path / "run", {})


def test_rows_of_a_job_without_a_hint_have_no_prompt_for_the_teacher(tmp_path: Path) -> None:
    prepared = prepare(distillation(rows(tmp_path, SUMS), hint=None), tmp_path / "run", {})
    assert prepared.train[0].teacher_prompt_tokens is None
    assert prepared.report.train.longest_teacher_prompt == 0
