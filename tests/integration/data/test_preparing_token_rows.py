"""Rows of token ids through Parquet: the same batches as of the text that they were made from."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from kubealign_services.data.collate import collate
from kubealign_services.data.errors import DataError
from kubealign_services.data.preparation import prepare
from kubealign_services.data.prepared import PreparedJob
from kubealign_services.data.tokenization.tokenizers import train_character_tokenizer
from support.preparing import from_config, job, rows, sft

pytestmark = pytest.mark.timeout(120)

TEXTS = [{"prompt": f"{n}+1=", "response": f"{n + 1}", "rejected": "0", "level": n % 2} for n in range(9)]


@pytest.fixture
def policy(tmp_path: Path) -> dict[str, Any]:
    folder = tmp_path / "tokenizer"
    train_character_tokenizer(["0123456789+="]).save_pretrained(folder)
    return {"model": from_config({"path": str(folder)})}


def parquet(folder: Path, lines: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    path = folder / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(lines), path)
    return {"source": {"path": str(path)}, "format": {"tokens": fields}}


def token_lines(prepared: PreparedJob) -> list[dict[str, Any]]:
    """Return the prepared rows as a user of TRL stores them."""
    lines = []
    for row in prepared.train:
        assert row.response_tokens is not None
        ids = [*row.prompt_tokens, *row.response_tokens]
        mask = [0] * len(row.prompt_tokens) + [1] * len(row.response_tokens)
        lines.append({"input_ids": ids, "completion_mask": mask, "level": row.columns["level"]})
    return lines


def test_demonstrations_are_those_of_their_texts(tmp_path: Path, policy: dict[str, Any]) -> None:
    limits = {"maxTokens": 4, "limit": 8}
    lines = [TEXTS[0] | {"prompt": "10+10="}, *TEXTS]
    as_text = prepare(sft(rows(tmp_path, lines) | limits, policy=policy), tmp_path / "text", {})
    unlimited = prepare(sft(rows(tmp_path, lines), policy=policy), tmp_path / "unlimited", {})
    data = parquet(tmp_path, token_lines(unlimited)) | limits | {"values": {"kind": "sum"}}
    as_tokens = prepare(sft(data, policy=policy), tmp_path / "tokens", {})
    assert as_tokens.report.train == as_text.report.train.model_copy(
        update={
            "source": str(tmp_path / "rows.parquet"),
            # The response and the rejected answer are not among the columns.
            "longest_context_bytes": as_tokens.report.train.longest_context_bytes,
        }
    )
    assert (as_tokens.report.train.rows_read, as_tokens.report.train.dropped) == (8, 1)
    for mine, other in zip(as_tokens.train, as_text.train, strict=True):
        assert mine == replace(other, columns={"level": other.columns["level"], "kind": "sum"})
    mine = collate(as_tokens.train[:4], list("abcd"), "demonstrations")
    other = collate(as_text.train[:4], list("abcd"), "demonstrations")
    assert mine.tokens.tolist() == other.tokens.tolist()
    assert mine.token("loss_mask").tolist() == other.token("loss_mask").tolist()


def test_preferences_and_prompts(tmp_path: Path, policy: dict[str, Any]) -> None:
    lines = [{"prompt_ids": [5, 3, 6, 14], "chosen_ids": [7, 1], "rejected_ids": [8, 8, 1], "answer": "3"}]
    pairs = parquet(tmp_path, lines)
    spec = {"policy": policy, "algorithm": {"dpo": {}}, "data": {"preferences": pairs}}
    row = prepare(job(spec), tmp_path / "pairs", {}).train[0]
    assert (row.prompt_tokens, row.chosen_tokens, row.rejected_tokens) == ([5, 3, 6, 14], [7, 1], [8, 8, 1])
    assert row.columns == {"answer": "3"}
    rloo = {"rloo": {"promptsPerStep": 2, "samplesPerPrompt": 2}}
    reward = {"name": "right", "function": {"file": {"path": "/reward.py", "name": "reward"}}}
    prompts = {"policy": policy, "algorithm": rloo, "data": {"prompts": pairs}, "rewards": [reward]}
    prompts["rollout"] = {"sampling": {"maxTokens": 8}}
    prepared = prepare(job(prompts), tmp_path / "prompts", {})
    assert prepared.train[0].prompt_tokens == [5, 3, 6, 14]
    assert prepared.train[0].prompt_text == prepared.tokenizer.decode([5, 3, 6, 14])
    # The other columns go to the rewards.
    assert prepared.train[0].columns == {"chosen_ids": [7, 1], "rejected_ids": [8, 8, 1], "answer": "3"}


def test_long_prompts_are_truncated(tmp_path: Path, policy: dict[str, Any]) -> None:
    data = parquet(tmp_path, [{"input_ids": [3, 4, 5, 6, 7, 1], "completion_mask": [0, 0, 0, 0, 1, 1]}])
    prepared = prepare(
        sft(data | {"maxTokens": 2, "overlong": "Truncate"}, policy=policy), tmp_path / "run", {}
    )
    assert (prepared.train[0].prompt_tokens, prepared.train[0].response_tokens) == ([5, 6], [7, 1])
    assert prepared.report.train.truncated == 1


def test_errors_name_the_file_the_row_and_the_column(tmp_path: Path, policy: dict[str, Any]) -> None:
    good = {"input_ids": [3, 7, 1], "completion_mask": [0, 1, 1]}
    bad = good | {"input_ids": [3, 99, 1]}
    data = rows(tmp_path, [good, bad], "a.jsonl") | {"format": {"tokens": {}}}
    problem = "column 'input_ids': item 2 is 99, which is no token of the policy's tokenizer"
    with pytest.raises(DataError) as caught:
        prepare(sft(data, policy=policy), tmp_path / "run", {})
    assert str(caught.value).startswith(f"{tmp_path / 'a.jsonl'}: row 2: {problem}")
    (tmp_path / "b.jsonl").write_text(json.dumps(bad) + "\n")
    data["source"] = {"paths": [str(tmp_path / name) for name in ("b.jsonl", "a.jsonl")]}
    with pytest.raises(DataError) as caught:
        prepare(sft(data, policy=policy), tmp_path / "run", {})
    assert str(caught.value).startswith(f"row 1 (row 1 of {tmp_path / 'b.jsonl'}): {problem}")


def test_a_column_that_is_missing_is_reported_before_the_rows(tmp_path: Path, policy: dict[str, Any]) -> None:
    data = rows(tmp_path, [{"input_ids": [3, 7], "loss_mask": [0, 1]}]) | {"format": {"tokens": {}}}
    field = "spec.data.demonstrations.format.tokens.trained.mask"
    with pytest.raises(DataError, match=f"{field}: .* has no column 'completion_mask'"):
        prepare(sft(data, policy=policy), tmp_path / "run", {})


def test_responses_without_an_end_are_counted(
    tmp_path: Path, policy: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    data = parquet(tmp_path, [{"prompt_ids": [3], "chosen_ids": [7, 1], "rejected_ids": [8]}] * 2)
    spec = {"policy": policy, "algorithm": {"dpo": {}}, "data": {"preferences": data}}
    with caplog.at_level(logging.WARNING):
        prepare(job(spec), tmp_path / "run", {})
    assert "spec.data: 2 of 2 rows have a response that no end-of-sequence token ends" in caplog.text


def test_no_tokenizer_is_trained_on_token_ids(tmp_path: Path) -> None:
    data = parquet(tmp_path, [{"input_ids": [3, 7], "completion_mask": [0, 1]}])
    with pytest.raises(
        DataError, match=r"spec\.data\.demonstrations\.format\.tokens: token ids have no text"
    ):
        prepare(sft(data), tmp_path / "run", {})


def test_validation_is_not_grouped_by_token_ids(tmp_path: Path, policy: dict[str, Any]) -> None:
    data = parquet(tmp_path, [{"input_ids": [3, 7], "completion_mask": [0, 1], "level": 1}])
    validation = {"data": {"demonstrations": data}, "groupBy": "input_ids"}
    with pytest.raises(DataError, match=r"groupBy: 'input_ids' holds the token ids"):
        prepare(sft(data, policy=policy, validation=validation), tmp_path / "run", {})
