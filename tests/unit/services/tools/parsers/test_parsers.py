"""Parsers of tool calls: what is rendered is read back, and no text makes them raise."""

import json
from collections.abc import Callable
from keyword import iskeyword
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kubealign_services.tools.parsers.contract import InvalidCall, ToolCall, ToolCallParser
from kubealign_services.tools.parsers.hermes import HermesParser
from kubealign_services.tools.parsers.llama3 import Llama3Parser
from kubealign_services.tools.parsers.mistral import MistralParser
from kubealign_services.tools.parsers.pythonic import PythonicParser

ADD = ToolCall("add", {"a": 1, "b": 2})
NOW = ToolCall("now", {})

NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True).filter(lambda name: not iskeyword(name))
# Texts with the marks of the formats, which a parser must not read as such.
TEXTS = st.text(max_size=12) | st.sampled_from(
    ["</tool_call>", "<tool_call>{", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "; {", ")]", "\\", '"', "'"]
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
CALLS = st.lists(
    st.builds(ToolCall, NAMES, st.dictionaries(NAMES, VALUES, max_size=3)),
    min_size=1,
    max_size=3,
)


def as_hermes(calls: list[ToolCall]) -> str:
    bodies = (json.dumps({"name": call.name, "arguments": call.arguments}) for call in calls)
    return "I look. " + "\n".join(f"<tool_call>\n{body}\n</tool_call>" for body in bodies)


def as_llama3(calls: list[ToolCall]) -> str:
    return "; ".join(json.dumps({"name": call.name, "parameters": call.arguments}) for call in calls)


def as_tagged_llama3(calls: list[ToolCall]) -> str:
    return f"<|python_tag|>{as_llama3(calls)}"


def as_mistral_list(calls: list[ToolCall]) -> str:
    return "[TOOL_CALLS] " + json.dumps([{"name": c.name, "arguments": c.arguments} for c in calls])


def as_mistral_named(calls: list[ToolCall]) -> str:
    return "".join(f"[TOOL_CALLS]{call.name}[ARGS]{json.dumps(call.arguments)}" for call in calls)


def as_pythonic(calls: list[ToolCall]) -> str:
    def one(call: ToolCall) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in call.arguments.items())
        return f"{call.name}({arguments})"

    return f"[{', '.join(one(call) for call in calls)}]"


def as_tagged_pythonic(calls: list[ToolCall]) -> str:
    return f"<|python_start|>{as_pythonic(calls)}<|python_end|>"


FORMATS: list[tuple[ToolCallParser, Callable[[list[ToolCall]], str]]] = [
    (HermesParser(), as_hermes),
    (Llama3Parser(), as_llama3),
    (Llama3Parser(), as_tagged_llama3),
    (MistralParser(), as_mistral_list),
    (MistralParser(), as_mistral_named),
    (PythonicParser(), as_pythonic),
    (PythonicParser(), as_tagged_pythonic),
]


@pytest.mark.parametrize(("parser", "render"), FORMATS, ids=[render.__name__ for _, render in FORMATS])
@given(calls=CALLS)
def test_what_is_rendered_is_read_back(
    parser: ToolCallParser, render: Callable[[list[ToolCall]], str], calls: list[ToolCall]
) -> None:
    assert parser.parse(render(calls)) == calls


PARSERS = [HermesParser(), Llama3Parser(), MistralParser(), PythonicParser()]
MARKS = st.sampled_from(
    [
        *(
            "<tool_call>",
            "</tool_call>",
            "<|python_tag|>",
            "[TOOL_CALLS]",
            "[ARGS]",
            "[CALL_ID]",
            "<|python_start|>",
        ),
        *(
            "<|python_end|>",
            "{",
            "}",
            "[",
            "]",
            "(",
            ")",
            '"name"',
            ":",
            '"f"',
            ",",
            ";",
            "f(a=",
            "1",
            "-",
            "'",
        ),
        *('{"name": "f", "arguments": ', '{"a": 1}', "\x00", "\ud800", "1e999", "NaN", " ", "\n"),
    ]
)


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: type(parser).__name__)
@given(text=st.text(max_size=30) | st.lists(MARKS, max_size=12).map("".join))
@example(text="<tool_call>" + "[" * 100_000)
@example(text="<|python_tag|>" + '{"a":' * 100_000)
@example(text='[TOOL_CALLS]f[ARGS]{"a": ' + "9" * 5000 + "}")
@example(text="[f(a=" + "-" * 60_000 + "1)]")
@example(text="[f(a=" + "(" * 5000 + "1" + ")" * 5000 + ")]")
@example(text="[f" + ".a" * 30_000 + "(b=1)]")
@example(text="[f(a=" + "9" * 5000 + ")]")
@example(text="[f(a='\\ud800')]")
def test_no_text_makes_a_parser_raise(parser: ToolCallParser, text: str) -> None:
    for call in parser.parse(text):
        assert isinstance(call, ToolCall | InvalidCall)
        if isinstance(call, ToolCall):
            json.dumps(call.arguments, allow_nan=False)


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: type(parser).__name__)
@pytest.mark.parametrize(
    "answer",
    ["", "3", "The sum is {3}.", "[1, 2]", '{"sum": 3}', '{"name": "Ada"}', "see [1](a=b)", "[note (a)]"],
)
def test_an_answer_calls_nothing(parser: ToolCallParser, answer: str) -> None:
    assert parser.parse(answer) == []


def problem(parser: ToolCallParser, text: str) -> str:
    [call] = parser.parse(text)
    assert isinstance(call, InvalidCall)
    return call.problem


@pytest.mark.parametrize(
    ("parser", "text", "says"),
    [
        (HermesParser(), '<tool_call>{"name": "add",}</tool_call>', "not JSON"),
        (HermesParser(), '<tool_call>{"arguments": {}}</tool_call>', "with name and arguments"),
        (HermesParser(), '<tool_call>{"name": "add", "arguments": "1"}</tool_call>', "must be a JSON object"),
        (HermesParser(), '<tool_call>{"name": "add"} soon</tool_call>', "</tool_call> must follow"),
        (HermesParser(), '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>', "NaN is no number"),
        (HermesParser(), '<tool_call>{"name": "f", "arguments": {"a": 1e999}}</tool_call>', "too large"),
        (Llama3Parser(), "<|python_tag|>print(1)", "not JSON"),
        (Llama3Parser(), '<|python_tag|>{"query": "x"}', "with name and arguments"),
        (MistralParser(), "[TOOL_CALLS]add[ARGS]oops", "not JSON"),
        (MistralParser(), "[TOOL_CALLS][]", "is empty"),
        (MistralParser(), "[TOOL_CALLS]add[ARGS][1]", "arguments of add must be a JSON object"),
        (PythonicParser(), "[add(1, 2)]", "arguments of add must be named"),
        (PythonicParser(), "[add(**{'a': 1})]", "arguments of add must be named"),
        (PythonicParser(), "[add(a=b)]", "numbers, texts, lists"),
        (PythonicParser(), "[add(a=b'1')]", "numbers, texts, lists"),
        (PythonicParser(), "[add(a=1e999)]", "numbers, texts, lists"),
        (PythonicParser(), "[add(a={1: 2})]", "numbers, texts, lists"),
        (PythonicParser(), "[add(a=1, b=)]", "no Python list"),
        (PythonicParser(), "<|python_start|>7<|python_end|>", "no Python list of calls"),
        (PythonicParser(), f"[add(a='{'x' * 70_000}')]", "65536 characters"),
    ],
)
def test_a_failed_call_says_what_is_wrong(parser: ToolCallParser, text: str, says: str) -> None:
    assert says in problem(parser, text)


@pytest.mark.parametrize(
    ("parser", "text", "calls"),
    [
        # The end tag was a stop string, or the response was about to end.
        (HermesParser(), '<tool_call>{"name": "now", "arguments": {}}', [NOW]),
        (HermesParser(), '<tool_call>{"name": "now"}</tool_call>', [NOW]),
        (Llama3Parser(), '{"name": "add", "arguments": {"a": 1, "b": 2}}', [ADD]),
        (
            Llama3Parser(),
            ' {"name": "now", "parameters": {}}\n{"name": "now", "parameters": {}} done',
            [NOW, NOW],
        ),
        (MistralParser(), "[TOOL_CALLS]now[CALL_ID]abc123def[ARGS]{}", [NOW]),
        (MistralParser(), "Yes.[TOOL_CALLS]now{}", [NOW]),
        (MistralParser(), '[TOOL_CALLS] {"name": "now", "arguments": {}}', [NOW]),
        (PythonicParser(), "[clock.now()]", [ToolCall("clock.now", {})]),
        (
            PythonicParser(),
            "[f(a=true, b=null, c=-1.5, d=+2, e=(1, 2))]",
            [ToolCall("f", {"a": True, "b": None, "c": -1.5, "d": 2, "e": [1, 2]})],
        ),
        (PythonicParser(), "Yes: <|tool_call_start|>[now()]<|tool_call_end|>", [NOW]),
    ],
)
def test_forms_that_models_write(parser: ToolCallParser, text: str, calls: list[Any]) -> None:
    assert parser.parse(text) == calls


def test_one_failed_call_does_not_hide_the_others() -> None:
    calls = HermesParser().parse('<tool_call>{bad</tool_call><tool_call>{"name": "now"}</tool_call>')
    assert isinstance(calls[0], InvalidCall)
    assert calls[1:] == [NOW]
    calls = Llama3Parser().parse('{"name": "now", "parameters": {}}; {"name":')
    assert calls[0] == NOW
    assert isinstance(calls[1], InvalidCall)
    calls = MistralParser().parse("[TOOL_CALLS]f[ARGS]{bad[TOOL_CALLS]now[ARGS]{}")
    assert isinstance(calls[0], InvalidCall)
    assert calls[1:] == [NOW]
