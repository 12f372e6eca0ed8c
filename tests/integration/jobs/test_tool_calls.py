"""A policy that has learned a conversation with tool calls repeats it with real tools, in a real job."""

import json
from pathlib import Path
from typing import Any

import pytest

from kubealign_services.data.prepared import load_prepared
from support.chat_templates import FAMILIES
from support.running import RunningJobs
from support.tiny_jobs import ARCHITECTURE, online_job, sft_job, write_jobs

pytestmark = pytest.mark.timeout(600)

TEMPLATE = """\
{%- for tool in tools or [] %}{{ tool.function.name + '!' }}{%- endfor %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + ' ' + message.content }}
    {%- for call in message.tool_calls %}
        {{- '<tool_call>{"name": "' + call.function.name + '", "arguments": ' }}
        {{- call.function.arguments | tojson + '}</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant ' }}{%- endif %}
"""
TOOL = '''
def add(a: int) -> int:
    """
    Add one.

    Args:
        a: A number.
    """
    if a == 13:
        raise ValueError("bad luck")
    return a + 1
'''
SCHEMA = {
    "type": "function",
    "function": {"name": "add", "description": "", "parameters": {"type": "object", "properties": {}}},
}
QUESTION = {"role": "user", "content": "one and one"}


def call(a: int) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "add", "arguments": {"a": a}}}


CONVERSATION = [
    QUESTION,
    {"role": "assistant", "content": "", "tool_calls": [call(1), call(13)]},
    {"role": "tool", "content": "2"},
    {"role": "tool", "content": "error: ValueError: bad luck"},
    {"role": "assistant", "content": "two"},
]


def write_rows(path: Path, row: dict[str, Any]) -> dict[str, Any]:
    path.write_text(f"{json.dumps(row)}\n" * 4)
    return {"source": {"path": str(path)}}


def jobs(folder: Path) -> Path:
    tokenizer = FAMILIES["qwen25"].tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder / "tokenizer")
    (folder / "tools.py").write_text(TOOL)
    architecture = ARCHITECTURE | {"max_position_embeddings": 256, "hidden_size": 64}
    model = {"config": {"architecture": architecture, "tokenizer": {"path": str(folder / "tokenizer")}}}
    learned = write_rows(folder / "learned.jsonl", {"messages": CONVERSATION}) | {
        "format": {"chat": {"turns": "All", "tools": "tools"}},
        "values": {"tools": [SCHEMA]},
    }
    asked = write_rows(folder / "asked.jsonl", {"messages": [QUESTION]}) | {"format": {"chat": {}}}
    function = {"file": {"path": str(folder / "tools.py"), "name": "add"}}
    return write_jobs(
        folder,
        sft_job(
            folder,
            "learns",
            algorithm={"sft": {"rowsPerStep": 4}},
            policy={"model": model},
            data={"demonstrations": learned},
            trainer={"optimizer": {"adamW": {"learningRate": 5.0e-3}}},
            maxSteps=80,
        ),
        online_job(
            folder,
            "calls",
            {"grpo": {"promptsPerStep": 2, "samplesPerPrompt": 2}},
            policy={"model": {"job": {"name": "learns"}}},
            data={"prompts": asked},
            rollout={
                "sampling": {"maxTokens": 160, "temperature": 0.2},
                "workflow": {"toolCalls": {"tools": [{"function": function, "timeoutSeconds": 60}]}},
            },
            maxSteps=1,
        ),
    )


def test_calls_are_answered_and_the_policy_continues(tmp_path: Path) -> None:
    with RunningJobs(jobs(tmp_path), tmp_path / "runs", "--no-dashboard") as run:
        assert run.end(550) == 0, run.output[-4000:]
        metrics = run.steps("calls")[1]
        prepared = load_prepared(run.folder("calls"))
        samples = [
            json.loads(line) for line in (run.folder("calls") / "samples.jsonl").read_text().splitlines()
        ]
    assert (metrics["rollout/turns"], metrics["rollout/tool_errors"]) == (2, 1)
    assert metrics["rollout/logprob_gap_max"] < 1e-3
    tokenizer = prepared.tokenizer
    prompt = tokenizer.apply_chat_template(
        [QUESTION], tools=[SCHEMA], add_generation_prompt=True, return_dict=False
    )
    assert prepared.train[0].prompt_tokens == prompt
    rendered = tokenizer.apply_chat_template(CONVERSATION, tools=[SCHEMA], return_dict=False)
    response = tokenizer.decode(rendered[len(prompt) :], skip_special_tokens=True)
    assert [sample["response"] for sample in samples] == [response] * len(samples)
    # The tokens of the policy, without those of the results and the openings around them.
    opening = "<|im_start|>assistant "
    texts = [tokenizer.apply_chat_template([CONVERSATION[n]], tools=None, tokenize=False) for n in (1, 4)]
    lengths = [len(tokenizer(text.removeprefix(opening))["input_ids"]) for text in texts]
    assert metrics["response/length"] == sum(lengths)
