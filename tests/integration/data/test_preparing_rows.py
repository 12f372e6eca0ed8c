"""Rows of every kind through Parquet: fixed values, templates, imitated turns, and rows of other jobs."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from kubealign_services.data.collate import collate
from kubealign_services.data.errors import DataError
from kubealign_services.data.preparation import prepare
from support.chat_templates import FAMILIES
from support.preparing import SIZES, from_config, job, rows, sft

pytestmark = pytest.mark.timeout(120)

SUMS = [{"prompt": f"{n}+1=", "response": f"{n + 1}", "grade": n / 2} for n in range(9)]


def learning(algorithm: dict[str, Any], member: str, data: dict[str, Any]) -> Any:
    return job({"algorithm": algorithm, "policy": {"model": from_config()}, "data": {member: data}})


def test_several_ratings(tmp_path: Path) -> None:
    lines = [row | {"wit": None if index else 3} for index, row in enumerate(SUMS)]
    data = rows(tmp_path, lines) | {"format": {"text": {"ratings": ["wit", "grade"]}}}
    given = learning({"rewardModel": {"objective": {"regression": {}}}}, "ratings", data)
    prepared = prepare(given, tmp_path / "run", {})
    assert [row.ratings for row in prepared.train][:3] == [[3.0, 0.0], [None, 0.5], [None, 1.0]]
    ratings = collate(prepared.train[:2], ["a", "b"], prepared.train.kind).sequence("ratings")
    assert torch.isnan(ratings).tolist() == [[False, False], [True, False]]
    lines[4] |= {"grade": None}
    rows(tmp_path, lines)
    with pytest.raises(DataError, match="row 5: 'wit', 'grade' are null: one must be known"):
        prepare(given, tmp_path / "other", {})


def test_unpaired_rows_as_text_and_as_messages(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [row | {"good": index % 2} for index, row in enumerate(SUMS)]
    for line in lines:
        texts = {"user": line["prompt"], "assistant": line["response"]}
        line["messages"] = [{"role": role, "content": text} for role, text in texts.items()]
    for name, layout in {"text": {"label": "good"}, "chat": {"label": "good"}}.items():
        data = rows(tmp_path, lines) | {"format": {name: layout}}
        prepared = prepare(learning({"kto": {}}, "unpaired", data), tmp_path / name, {})
        assert [row.label for row in prepared.train][:3] == [False, True, False]
        batch = collate(prepared.train[:4], list("abcd"), prepared.train.kind)
        assert batch.sequence("label").tolist() == [0, 1, 0, 1]
        assert batch.token("loss_mask").sum() == 8


def test_preferences_with_ratings(tmp_path: Path) -> None:
    lines = [{"prompt": "1+1=", "chosen": "2", "rejected": "3", "good": 4, "bad": 0.5}]
    layout = {"text": {"chosenRating": "good", "rejectedRating": "bad"}}
    prepared = prepare(
        learning({"rpo": {}}, "preferences", rows(tmp_path, lines) | {"format": layout}), tmp_path / "run", {}
    )
    batch = collate(prepared.train[:1], ["a"], prepared.train.kind)
    assert batch.sequence("rating").tolist() == [4.0, 0.5]


def test_imitated_turns(tmp_path: Path) -> None:
    turns = [("1+1=", "2"), ("2+1=", "4"), ("3+1=", "4")]
    messages = [
        {"role": role, "content": text}
        for turn in turns
        for role, text in zip(("user", "assistant"), turn, strict=True)
    ]
    messages[3]["weight"] = 0  # type: ignore[assignment]
    data = rows(tmp_path, [{"messages": messages}])
    for name, learned in {
        "Last": ["4<eos>"],
        "All": ["2<eos>", "4<eos>", "4<eos>"],
        "Weighted": ["2<eos>", "4<eos>"],
    }.items():
        chat = data | {"format": {"chat": {"turns": name}}}
        policy = {"model": from_config(max_position_embeddings=200)}
        prepared = prepare(sft(chat, policy=policy), tmp_path / name, {})
        row = prepared.train[0]
        batch = collate([row], ["a"], prepared.train.kind)
        runs = "".join(
            prepared.tokenizer.decode([token]) if bit else "|"
            for token, bit in zip(batch.tokens.tolist(), batch.token("loss_mask").tolist(), strict=True)
        )
        assert [part for part in runs.split("|") if part] == learned
        full = str(prepared.tokenizer.decode(batch.tokens.tolist()))
        assert full.startswith("User:\n1+1=\n\nAssistant:\n2<eos>\n\nUser:\n2+1=")
        assert full.endswith("4<eos>")
        assert prepared.report.train.longest_sequence == len(batch.tokens)
        assert prepared.report.train.unknown_tokens == 0


def test_tools_and_variables_of_the_template(tmp_path: Path) -> None:
    """`values` gives every row the tools of the spec, and the variables are inputs of the preparation."""
    source, family = tmp_path / "source", FAMILIES["qwen3"]
    tokenizer = family.tokenizer()
    tokenizer.save_pretrained(source)
    sizes = {**SIZES, "max_position_embeddings": 512}
    model = {"config": {"architecture": sizes, "tokenizer": {"path": str(source)}}}
    tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    talk = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]
    chat = {"tools": "functions", "chatTemplateKwargs": {"enable_thinking": False}}
    data = rows(tmp_path, [{"messages": talk}]) | {"values": {"functions": tools}, "format": {"chat": chat}}
    prepared = prepare(sft(data, policy={"model": model}), tmp_path / "run", {})
    row, variables = prepared.train[0], {"tools": tools, "enable_thinking": False}
    prompt = tokenizer.apply_chat_template(
        talk[:1], return_dict=False, add_generation_prompt=True, **variables
    )
    assert row.prompt_tokens == prompt
    whole = tokenizer.apply_chat_template(talk, return_dict=False, **variables)
    # The line break after the end of the turn is the template's alone.
    assert row.prompt_tokens + (row.response_tokens or []) == whole[:-1]
    changed = data | {"format": {"chat": {**chat, "chatTemplateKwargs": {"enable_thinking": True}}}}
    with pytest.raises(DataError, match="enable_thinking was false, is true"):
        prepare(sft(changed, policy={"model": model}), tmp_path / "run", {})


@pytest.mark.parametrize(
    ("chat", "field"),
    [
        ({"tools": "functions"}, "tools: the tokenizer's chat template has no variable tools"),
        (
            {"chatTemplateKwargs": {"enable_thinkin": False}},
            "chatTemplateKwargs.enable_thinkin: the tokenizer's chat template has no variable enable_thinkin",
        ),
    ],
)
def test_variables_that_the_template_does_not_read(tmp_path: Path, chat: Any, field: str) -> None:
    """The plain template reads neither: tools and a misspelt variable would be ignored."""
    talk = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]
    data = rows(tmp_path, [{"messages": talk, "functions": []}]) | {"format": {"chat": chat}}
    with pytest.raises(DataError, match=f"spec.data.demonstrations.format.chat.{field}"):
        prepare(sft(data), tmp_path / "run", {})


def test_a_conversation_without_room_is_dropped_whole(tmp_path: Path) -> None:
    long = [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2" * 30}]
    short = [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]
    data = rows(tmp_path, [{"messages": long + short}, {"messages": short}])
    prepared = prepare(sft(data | {"format": {"chat": {"turns": "All"}}}), tmp_path / "run", {})
    assert (prepared.report.train.dropped, [row.row for row in prepared.train]) == (1, [1])


def test_values_and_a_template(tmp_path: Path) -> None:
    data = rows(tmp_path, SUMS) | {"values": {"style": "short"}, "template": "{prompt} {grade} {style}"}
    prepared = prepare(sft(data), tmp_path / "run", {})
    row = prepared.train[3]
    assert row.prompt_text == "3+1= 1.5 short" == prepared.tokenizer.decode(row.prompt_tokens)
    assert prepared.train[4].prompt_text == "4+1= 2 short"
    # The columns include the values of the template, also the prompt's own column.
    assert row.columns == {"prompt": "3+1=", "response": "4", "grade": 1.5, "style": "short"}
    with pytest.raises(DataError, match=r"\.values\.style was \"short\", is \"long\""):
        prepare(sft(data | {"values": {"style": "long"}}), tmp_path / "run", {})
    with pytest.raises(DataError, match=r"\.template was .* is null"):
        prepare(sft(data | {"template": None}), tmp_path / "run", {})


def test_values_can_supply_a_column_of_the_format(tmp_path: Path) -> None:
    data = rows(tmp_path, SUMS) | {"values": {"label": True}}
    prepared = prepare(learning({"kto": {}}, "unpaired", data), tmp_path / "run", {})
    assert {row.label for row in prepared.train} == {True}


def test_template_with_a_missing_column(tmp_path: Path) -> None:
    data = rows(tmp_path, SUMS) | {"template": "{prompt} {grad}"}
    with pytest.raises(
        DataError, match=r"spec\.data\.demonstrations\.template: \{grad\} is no column; there"
    ):
        prepare(sft(data), tmp_path / "run", {})


def test_rows_that_another_job_made(tmp_path: Path) -> None:
    result = tmp_path / "samples" / "result"
    result.mkdir(parents=True)
    rows(result, SUMS, "data.jsonl")
    value = {"data": {"demonstrations": {"source": {"job": {"name": "samples"}}, "limit": 2}}}
    given = sft({"source": {"job": {"name": "samples"}}}, validation=value)
    prepared = prepare(given, tmp_path / "run", {"samples": result})
    assert [row.prompt_text for row in prepared.train] == [line["prompt"] for line in SUMS]
    assert prepared.validation is not None and len(prepared.validation) == 2
    assert json.loads((prepared.folder / "inputs.json").read_text())["data"]["demonstrations"]["source"][
        "job"
    ] == {"name": "samples"}


def test_a_job_that_made_no_rows(tmp_path: Path) -> None:
    given = sft({"source": {"job": {"name": "samples"}}})
    pattern = r"spec\.data\.demonstrations\.source\.job\.name"
    with pytest.raises(
        DataError, match=f"{pattern}: the result of samples has no rows: there is no .*data.jsonl"
    ):
        prepare(given, tmp_path / "run", {"samples": tmp_path})
    with pytest.raises(DataError, match=f"{pattern}: there is no result of a job samples; known are: none"):
        prepare(given, tmp_path / "run", {})
    (tmp_path / "data.jsonl").write_text("")
    with pytest.raises(DataError, match=r"data\.jsonl has no rows"):
        prepare(given, tmp_path / "run", {"samples": tmp_path})
