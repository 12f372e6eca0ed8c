"""Prompts with the schemas of the job's tools, for training, validation and streamed rows."""

import json
from pathlib import Path
from typing import Any

import pytest

from kubealign.spec.job import AlignmentJob
from kubealign_services.data.epoch_shuffle import EpochCursor
from kubealign_services.data.errors import DataError
from kubealign_services.data.preparation import prepare
from kubealign_services.data.streaming.row_stream import StreamState
from kubealign_services.data.streaming.tokenized_stream import open_stream
from kubealign_services.tools.job_tools import load_tools
from support.chat_templates import FAMILIES
from support.preparing import from_config, job, rows

pytestmark = pytest.mark.timeout(240)

SUMS = [{"messages": [{"role": "user", "content": f"{n}+1?"}], "answer": n + 1} for n in range(4)]
TOOL = '''
def add(a: int, b: int) -> int:
    """
    Add two numbers.

    Args:
        a: One number.
        b: Another number.
    """
    return a + b
'''


def calling_job(folder: Path, family: str = "qwen25", data: Any = None, **tool_calls: Any) -> AlignmentJob:
    FAMILIES[family].tokenizer().save_pretrained(folder / family)
    (folder / "tools.py").write_text(TOOL)
    function = {"file": {"path": str(folder / "tools.py"), "name": "add"}}
    prompts = rows(folder, SUMS) | {"format": {"chat": {}}}
    return job(
        {
            "algorithm": {"rloo": {}},
            "policy": {"model": from_config({"path": str(folder / family)}, max_position_embeddings=1024)},
            "data": {"prompts": prompts | (data or {})},
            "validation": {"data": {"prompts": prompts}},
            "rewards": [{"name": "right", "function": {"module": "a:b"}}],
            "rollout": {
                "sampling": {"maxTokens": 64},
                "workflow": {"toolCalls": {"tools": [{"function": function}]} | tool_calls},
            },
        }
    )


def test_prompts_have_the_tools_and_the_workers_get_the_same(tmp_path: Path) -> None:
    calling = calling_job(tmp_path)
    prepared = prepare(calling, tmp_path / "run", {})
    tools = load_tools(calling, tmp_path / "run")
    assert tools is not None and prepared.validation is not None
    [tool] = tools.catalog
    assert (tool.name, tool.function, tool.server) == ("add", 0, None)
    assert tool.schema["function"]["description"] == "Add two numbers."
    for prepared_rows in (prepared.train, prepared.validation):
        for row, source in zip(prepared_rows, SUMS, strict=True):
            expected = prepared.tokenizer.apply_chat_template(
                source["messages"], tools=[tool.schema], add_generation_prompt=True, return_dict=False
            )
            assert row.prompt_tokens == expected
            assert json.dumps(tool.schema)[1:-1] in row.prompt_text
    # The same spec uses the preparation again, and other tools do not.
    prepare(calling, tmp_path / "run", {})
    renamed = calling.model_dump(mode="json", by_alias=True)
    renamed["spec"]["rollout"]["workflow"]["toolCalls"]["tools"][0]["name"] = "plus"
    with pytest.raises(DataError, match=r'toolCalls\.tools\[0\]\.name was null, is "plus"'):
        prepare(AlignmentJob.model_validate(renamed), tmp_path / "run", {})


def test_streamed_prompts_have_the_tools(tmp_path: Path) -> None:
    calling = calling_job(tmp_path, data={"streaming": {}, "shuffle": False})
    prepared = prepare(calling, tmp_path / "run", {})
    stream = open_stream(calling, prepared, EpochCursor(), StreamState())
    streamed = stream.read_block(4)
    assert [row.content.prompt_tokens for row in streamed] == [row.prompt_tokens for row in prepared.train]


@pytest.mark.parametrize(
    ("family", "changes", "says"),
    [
        ("smollm2", {}, r"spec\.policy\.model: the chat template of its tokenizer does not read tools"),
        ("llama3", {}, r"2 calls of a tool.*parallelCalls to false"),
        ("qwen25", {"parserPlugin": "ours"}, r"toolCalls\.parserPlugin: ours is not installed"),
    ],
)
def test_what_cannot_work_fails_before_any_role_starts(
    tmp_path: Path, family: str, changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(DataError, match=says):
        prepare(calling_job(tmp_path, family, **changes), tmp_path / "run", {})
    assert not (tmp_path / "run" / "prepared").exists()
