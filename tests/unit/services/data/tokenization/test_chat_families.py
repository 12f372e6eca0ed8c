"""Conversations give the tokens of the chat template, for templates of seven families of models.

The reference is `apply_chat_template` of transformers: that of the whole conversation, cut behind the last
end of turn, where sampling stops.
"""

import json
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from kubealign_services.data.errors import DataError
from kubealign_services.data.tokenization.example_tokenizer import TokenizedExample
from support.chat_rows import template_ids, tokenize_row
from support.chat_templates import FAMILIES, ChatFamily

each_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
#: Families whose renderings of the first messages are prefixes of the whole.
PREFIX_FAMILIES = {name: family for name, family in FAMILIES.items() if not family.rewrites}
each_prefix_family = pytest.mark.parametrize("family", PREFIX_FAMILIES.values(), ids=PREFIX_FAMILIES)


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: str, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **fields}


TALK = [
    user("one and one?"),
    assistant("two"),
    user("are you sure?"),
    assistant("yes, \n\nof course"),
    user("thanks"),
    assistant("you are welcome"),
]


def call(**arguments: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "add", "arguments": arguments}}


TOOLS = [{"type": "function", "function": {"name": "add", "description": "adds", "parameters": {}}}]
#: A call, its result and an answer. Parquet fills absent fields with null.
TOOL_TALK = [
    {"role": "user", "content": "one and one?", "tool_calls": None},
    {"role": "assistant", "content": None, "tool_calls": [call(a=1, b=1)], "reasoning_content": "use add"},
    {"role": "tool", "content": "2", "tool_calls": None},
    assistant("two", reasoning_content="of course"),
]
TOOL_FAMILIES = {name: family for name, family in FAMILIES.items() if family.takes_tools}
each_tool_family = pytest.mark.parametrize("family", TOOL_FAMILIES.values(), ids=TOOL_FAMILIES)
#: The answers of a preference: of other lengths, the second with spaces around it.
CHOSEN, REJECTED = [*TALK[:3], assistant("of course")], [*TALK[:3], assistant(" no ")]


def tokenize(
    family: ChatFamily, member: str, row: dict[str, Any], **chat: Any
) -> tuple[PreTrainedTokenizerFast, TokenizedExample]:
    tokenizer = family.tokenizer()
    return tokenizer, tokenize_row(tokenizer, member, row, **chat)


def end_id(family: ChatFamily, tokenizer: PreTrainedTokenizerFast) -> int:
    return int(tokenizer.get_vocab()[family.end])


def conversation_ids(
    family: ChatFamily, tokenizer: PreTrainedTokenizerFast, messages: list[Any], **options: Any
) -> list[int]:
    """Return the template's ids through the last end of turn."""
    ids = template_ids(tokenizer, messages, **options)
    end = end_id(family, tokenizer)
    return ids[: len(ids) - ids[::-1].index(end)]


def assistant_mask(
    family: ChatFamily, tokenizer: PreTrainedTokenizerFast, messages: list[Any], **options: Any
) -> list[int]:
    """Return 1 at the ids from the opening of each answer through the next end of turn, one by one."""
    ids = conversation_ids(family, tokenizer, messages, **options)
    end = end_id(family, tokenizer)
    mask = [0] * len(ids)
    for index, message in enumerate(messages):
        if message["role"] == "assistant":
            position = len(template_ids(tokenizer, messages[:index], add_generation_prompt=True, **options))
            while ids[position] != end:
                mask[position] = 1
                position += 1
            mask[position] = 1
    return mask


@each_family
@pytest.mark.parametrize(
    ("member", "columns"),
    [("demonstrations", {}), ("ratings", {"rating": 1.0}), ("unpaired", {"label": True})],
)
def test_the_last_turn(family: ChatFamily, member: str, columns: dict[str, Any]) -> None:
    tokenizer, row = tokenize(family, member, {"messages": TALK, **columns})
    assert row.prompt_tokens == template_ids(tokenizer, TALK[:-1], add_generation_prompt=True)
    assert row.prompt_tokens + row.responses["response"] == conversation_ids(family, tokenizer, TALK)
    assert tokenizer.convert_ids_to_tokens(row.responses["response"][-1]) == family.end


@each_family
def test_preferences(family: ChatFamily) -> None:
    tokenizer, row = tokenize(family, "preferences", {"chosen": CHOSEN, "rejected": REJECTED})
    assert row.prompt_tokens == template_ids(tokenizer, CHOSEN[:-1], add_generation_prompt=True)
    for name, messages in {"chosen": CHOSEN, "rejected": REJECTED}.items():
        assert row.prompt_tokens + row.responses[name] == conversation_ids(family, tokenizer, messages)


@each_family
def test_prompts_are_those_of_the_rows(family: ChatFamily) -> None:
    """A policy samples from the prompt that it was trained on."""
    _, trained = tokenize(family, "demonstrations", {"messages": TALK})
    _, sampled = tokenize(family, "prompts", {"messages": TALK[:-1]})
    assert sampled.prompt_tokens == trained.prompt_tokens


@each_prefix_family
def test_all_turns(family: ChatFamily) -> None:
    tokenizer, row = tokenize(family, "demonstrations", {"messages": TALK}, turns="All")
    assert row.prompt_tokens + row.responses["response"] == conversation_ids(family, tokenizer, TALK)
    mask = [0] * len(row.prompt_tokens) + (row.response_mask or [])
    assert mask == assistant_mask(family, tokenizer, TALK)


@each_prefix_family
def test_weighted_turns(family: ChatFamily) -> None:
    """A turn of weight 0 has no loss, and the others end where they do with All."""
    weighted = [TALK[0], TALK[1] | {"weight": 0}, *TALK[2:]]
    _, every = tokenize(family, "demonstrations", {"messages": TALK}, turns="All")
    _, row = tokenize(family, "demonstrations", {"messages": weighted}, turns="Weighted")
    assert row.prompt_tokens + row.responses["response"] == every.prompt_tokens + every.responses["response"]
    skipped = len(row.prompt_tokens) - len(every.prompt_tokens)
    assert row.response_mask == (every.response_mask or [])[skipped:]


@each_tool_family
@pytest.mark.parametrize("turns", ["Last", "All"])
def test_tool_calls_and_reasoning(family: ChatFamily, turns: str) -> None:
    tokenizer, row = tokenize(family, "demonstrations", {"messages": TOOL_TALK}, turns=turns)
    assert row.prompt_tokens + row.responses["response"] == conversation_ids(family, tokenizer, TOOL_TALK)
    if turns == "All":
        mask = [0] * len(row.prompt_tokens) + (row.response_mask or [])
        assert mask == assistant_mask(family, tokenizer, TOOL_TALK)


@each_tool_family
def test_an_answer_that_is_a_tool_call(family: ChatFamily) -> None:
    """The two sides of a preference differ in the arguments of a call."""
    sides = {
        name: [TOOL_TALK[0], {"role": "assistant", "content": None, "tool_calls": [call(a=a, b=1)]}]
        for name, a in {"chosen": 1, "rejected": 2}.items()
    }
    tokenizer, row = tokenize(family, "preferences", sides)
    for name, messages in sides.items():
        assert row.prompt_tokens + row.responses[name] == conversation_ids(family, tokenizer, messages)
    assert row.responses["chosen"] != row.responses["rejected"]


@each_tool_family
def test_a_prompt_that_ends_with_the_result_of_a_tool(family: ChatFamily) -> None:
    tokenizer, row = tokenize(family, "prompts", {"messages": TOOL_TALK[:3]})
    assert row.prompt_tokens == template_ids(tokenizer, TOOL_TALK[:3], add_generation_prompt=True)


@each_family
def test_parts_of_text(family: ChatFamily) -> None:
    """Parts give the tokens of their text, which only Gemma's template takes as a list."""
    parts = [{"type": "text", "text": "one and"}, {"type": "text", "text": " one?", "image": None}]
    _, row = tokenize(family, "prompts", {"messages": [{"role": "user", "content": parts}]})
    _, joined = tokenize(family, "prompts", {"messages": [user("one and one?")]})
    assert row.prompt_tokens == joined.prompt_tokens


@each_tool_family
@pytest.mark.parametrize("as_text", [False, True], ids=["list", "JSON text"])
@pytest.mark.parametrize(
    ("member", "columns"),
    [
        ("demonstrations", {"messages": TOOL_TALK}),
        ("preferences", {"chosen": TOOL_TALK, "rejected": [*TOOL_TALK[:-1], assistant("three")]}),
        ("ratings", {"messages": TOOL_TALK, "rating": 1.0}),
        ("unpaired", {"messages": TOOL_TALK, "label": False}),
    ],
)
def test_tools(family: ChatFamily, member: str, columns: dict[str, Any], as_text: bool) -> None:
    row_of_tools = columns | {"functions": json.dumps(TOOLS) if as_text else TOOLS}
    tokenizer, row = tokenize(family, member, row_of_tools, tools="functions")
    prompt = template_ids(tokenizer, TOOL_TALK[:-1], tools=TOOLS, add_generation_prompt=True)
    assert row.prompt_tokens == prompt != template_ids(tokenizer, TOOL_TALK[:-1], add_generation_prompt=True)
    name = "chosen" if member == "preferences" else "response"
    expected = conversation_ids(family, tokenizer, TOOL_TALK, tools=TOOLS)
    assert row.prompt_tokens + row.responses[name] == expected
    _, sampled = tokenize(family, "prompts", row_of_tools | {"messages": TOOL_TALK[:-1]}, tools="functions")
    assert sampled.prompt_tokens == prompt


@each_tool_family
def test_tools_with_all_turns(family: ChatFamily) -> None:
    row_of_tools = {"messages": TOOL_TALK, "tools": TOOLS}
    tokenizer, row = tokenize(family, "demonstrations", row_of_tools, turns="All", tools="tools")
    mask = [0] * len(row.prompt_tokens) + (row.response_mask or [])
    assert mask == assistant_mask(family, tokenizer, TOOL_TALK, tools=TOOLS)
    expected = conversation_ids(family, tokenizer, TOOL_TALK, tools=TOOLS)
    assert row.prompt_tokens + row.responses["response"] == expected


@pytest.mark.parametrize("tools", [None, [], "[]", "null"])
def test_a_row_without_tools(tools: Any) -> None:
    family = FAMILIES["llama3"]
    _, row = tokenize(family, "demonstrations", {"messages": TALK, "tools": tools}, tools="tools")
    _, plain = tokenize(family, "demonstrations", {"messages": TALK})
    assert row.prompt_tokens == plain.prompt_tokens


@pytest.mark.parametrize(
    ("tools", "problem"),
    [
        ("{", r"holds '\{' \(str\), not JSON"),
        ({"name": "add"}, "not a list of tools, each a JSON schema"),
        (["add"], "not a list of tools, each a JSON schema"),
    ],
)
def test_tools_that_are_none(tools: Any, problem: str) -> None:
    with pytest.raises(DataError, match=f"row 5: column 'tools' .*{problem}"):
        tokenize(FAMILIES["qwen3"], "demonstrations", {"messages": TALK, "tools": tools}, tools="tools")


@pytest.mark.parametrize("thinks", [True, False])
def test_variables_of_the_template(thinks: bool) -> None:
    """Qwen 3 that does not think samples behind an empty block of reasoning, and is trained there."""
    family, variables = FAMILIES["qwen3"], {"enable_thinking": thinks}
    tokenizer, row = tokenize(family, "demonstrations", {"messages": TALK}, chatTemplateKwargs=variables)
    _, sampled = tokenize(family, "prompts", {"messages": TALK[:-1]}, chatTemplateKwargs=variables)
    assert row.prompt_tokens == sampled.prompt_tokens
    assert row.prompt_tokens == template_ids(tokenizer, TALK[:-1], add_generation_prompt=True, **variables)
    assert row.prompt_tokens + row.responses["response"] == conversation_ids(family, tokenizer, TALK)
    opening = "" if thinks else "<think>\n\n</think>\n\n"
    assert row.prompt_text.endswith(f"<|im_start|>assistant\n{opening}")
    answer = "you are welcome<|im_end|>"
    expected = answer if not thinks else f"<think>\n\n</think>\n\n{answer}"
    assert tokenizer.decode(row.responses["response"]) == expected


def test_a_template_that_removes_reasoning_from_earlier_turns() -> None:
    """The first answer is rendered with its reasoning while it is the last one, and without it later."""
    family, problem = FAMILIES["qwen3"], r"rewrites history: it renders message 2, .* turns: Last"
    talk = [TALK[0], assistant("two", reasoning_content="add"), TALK[2], assistant("yes")]
    for messages in (TALK, talk):
        with pytest.raises(DataError, match=f"row 5: the chat template {problem}"):
            tokenize(family, "demonstrations", {"messages": messages}, turns="All")
    tokenizer, row = tokenize(family, "demonstrations", {"messages": talk}, turns="Last")
    assert row.prompt_tokens + row.responses["response"] == conversation_ids(family, tokenizer, talk)


def test_tools_that_move_to_the_last_question() -> None:
    """Mistral's template writes the tools before the last question, so an earlier turn loses them."""
    row_of_tools = {"messages": TALK, "tools": TOOLS}
    with pytest.raises(DataError, match="row 5: the chat template rewrites history: it renders message 2"):
        tokenize(FAMILIES["mistral"], "demonstrations", row_of_tools, turns="All", tools="tools")


def test_a_template_without_tool_calls_refuses_them() -> None:
    for name in ("phi4", "gemma3", "smollm2"):
        with pytest.raises(DataError, match="row 5: the chat template rejects its messages"):
            tokenize(FAMILIES[name], "demonstrations", {"messages": TOOL_TALK})


def test_a_system_message_that_is_rendered_for_the_last_question_only() -> None:
    """Mistral's published template leaves the system message out once an answer follows."""
    talk = [{"role": "system", "content": "be brief"}, *TALK[:2]]
    with pytest.raises(
        DataError, match="row 5: the chat template renders the messages before the last one differently"
    ):
        tokenize(FAMILIES["mistral"], "demonstrations", {"messages": talk})
