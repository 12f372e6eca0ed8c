"""Parsers of tool calls against those of vLLM, which was written independently."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kubealign_services.tools.parsers.contract import ToolCall, ToolCallParser
from kubealign_services.tools.parsers.hermes import HermesParser
from kubealign_services.tools.parsers.llama3 import Llama3Parser
from kubealign_services.tools.parsers.mistral import MistralParser
from kubealign_services.tools.parsers.pythonic import PythonicParser
from support.vllm_environment import ABSENT, VLLM_PYTHON

pytestmark = [pytest.mark.timeout(300), pytest.mark.skipif(bool(ABSENT), reason=ABSENT)]

PROGRAM = "from support.vllm_tool_parsers import main; main()"
TESTS = Path(__file__).parents[2]
PARSERS: dict[str, ToolCallParser] = {
    "hermes": HermesParser(),
    "llama3": Llama3Parser(),
    "mistral": MistralParser(),
    "mistral-v11": MistralParser(),
    "pythonic": PythonicParser(),
}
#: Texts of turns that both read alike.
TEXTS = {
    "hermes": [
        "The sum is 3.",
        '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>',
        'I add.\n<tool_call>{"name": "add", "arguments": {"a": [1, {"b": null}]}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {}}</tool_call>\n'
        '<tool_call>{"name": "g", "arguments": {"é": "ü"}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": 1}}',
        '<tool_call>{"name": "f", "arguments": {"a": 1</tool_call>',
        '<tool_call>{"arguments": {"a": 1}}</tool_call>',
        '{"name": "f", "arguments": {"a": 1}}',
    ],
    "llama3": [
        "The sum is 3.",
        '{"name": "add", "parameters": {"a": 1, "b": 2}}',
        '<|python_tag|>{"name": "add", "parameters": {"a": 1}}',
        '{"name": "f", "parameters": {}}; {"name": "g", "arguments": {"x": "a;b"}}',
        '  {"name": "f", "parameters": {"a": {"b": {"c": [1, 2]}}}}  ',
        '{"sum": 3}',
        '{"name": "f"}',
        '{"name": "f", "parameters": {"a": 1}',
        "[1, 2]",
    ],
    "mistral": [
        "The sum is 3.",
        '[TOOL_CALLS][{"name": "add", "arguments": {"a": 1, "b": 2}}]',
        '[TOOL_CALLS] [{"name": "f", "arguments": {}}, {"name": "g", "arguments": {"x": [1]}}]',
    ],
    "mistral-v11": [
        "The sum is 3.",
        '[TOOL_CALLS]add[ARGS]{"a": 1}',
        '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{"b": {"c": 2}}',
        'I add.[TOOL_CALLS]add{"a": 1}',
    ],
    "pythonic": [
        "The sum is 3.",
        "[add(a=1, b=2)]",
        "[f(), g(x='a, b')]",
        '[f(a=-1.5, b=true, c=None, d=[1, 2], e={"k": "v"}, g=(1, 2))]',
        "[1, 2]",
        "[add(a=x)]",
        "add(a=1)",
    ],
}
#: Texts that are read differently, with the calls of vLLM and those of kubealign.
DIFFERENCES: list[tuple[str, str, list[Any], list[Any]]] = [
    # One call that cannot be read hides the others in vLLM, and gets an error of its own here.
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {}}</tool_call><tool_call>{bad</tool_call>',
        [],
        [["f", {}]],
    ),
    # A tool without parameters may be called without arguments.
    ("hermes", '<tool_call>{"name": "f"}</tool_call>', [], [["f", {}]]),
    # Text within a call is JSON, whatever it says.
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>"}}</tool_call>',
        [],
        [["f", {"a": "</tool_call>"}]],
    ),
    # Names of tools may have dots.
    ("pythonic", "[clock.now(zone='UTC')]", [], [["clock.now", {"zone": "UTC"}]]),
    # An object within an answer is no call: a call is the whole turn.
    ("llama3", 'I say {"name": "f", "parameters": {}}', [["f", {}]], []),
]


def of_vllm(texts: list[tuple[str, str]]) -> list[list[Any]]:
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]),
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    ran = subprocess.run(
        [VLLM_PYTHON, "-c", PROGRAM],
        input=json.dumps(texts),
        capture_output=True,
        text=True,
        env=environment,
        timeout=240,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    results: list[list[Any]] = json.loads(ran.stdout.splitlines()[-1])
    return results


def of_kubealign(name: str, text: str) -> list[Any]:
    calls = PARSERS[name].parse(text)
    return [[call.name, call.arguments] for call in calls if isinstance(call, ToolCall)]


def test_calls_are_those_that_vllm_reads() -> None:
    texts = [(name, text) for name, group in TEXTS.items() for text in group]
    differences = [(name, text) for name, text, _, _ in DIFFERENCES]
    results = of_vllm(texts + differences)
    for (name, text), calls in zip(texts, results, strict=False):
        assert of_kubealign(name, text) == calls, (name, text)
    for (name, text, theirs, ours), calls in zip(DIFFERENCES, results[len(texts) :], strict=True):
        assert calls == theirs, (name, text)
        assert of_kubealign(name, text) == ours, (name, text)
    # Half of the texts have calls.
    assert sum(bool(calls) for calls in results) >= 15
