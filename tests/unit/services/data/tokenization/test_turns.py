"""Tokens of the imitated turns of a conversation, with templates of several kinds."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from kubealign_services.data.errors import DataError
from kubealign_services.data.rows.example import Dialogue, Example, Message
from kubealign_services.data.tokenization.chat_template import ensure_chat_template
from kubealign_services.data.tokenization.example_tokenizer import (
    ExampleTokenizer,
    TokenizedExample,
    training_texts,
)
from kubealign_services.data.tokenization.tokenizers import train_bpe_tokenizer, train_character_tokenizer

#: Headers and ends are tokens of their own, and the content is trimmed.
LLAMA = (
    "{{ bos_token }}{% for m in messages %}"
    "{{ '<|start|>' + m['role'] + '<|end|>\n\n' + m['content'] | trim + '<|eot|>' }}"
    "{% endfor %}"
    "{{ '<|start|>assistant<|end|>\n\n' if add_generation_prompt else '' }}"
)
#: Marks the assistant's words itself; it ends a turn with a token and a line.
MARKED = (
    "{% for m in messages %}{{ '<|start|>' + m['role'] + '\n' }}"
    "{% if m['role'] == 'assistant' %}"
    "{% generation %}{{ m['content'] + '<|eot|>' }}{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ m['content'] + '<|eot|>\n' }}{% endif %}{% endfor %}"
)
#: No token of its own: a turn ends with its line.
OWN = "m['role'] == 'assistant'"
LINES = (
    "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"
    "{{ 'assistant: ' if add_generation_prompt else '' }}"
)


def chat_message(role: str, content: str, **more: object) -> Message:
    return {"role": role, "content": content, **more}


TALK = [
    chat_message("system", "be brief"),
    chat_message("user", "1+1?"),
    chat_message("assistant", "2"),
    chat_message("user", "sure?"),
    chat_message("assistant", "yes"),
    chat_message("user", "bye"),
    chat_message("assistant", "bye bye"),
]


def tokenizer_with(template: str | None, eos: str = "<|eot|>") -> PreTrainedTokenizerFast:
    tokenizer = train_bpe_tokenizer(["be brief sure bye yes"], 300)
    tokenizer.add_special_tokens(
        {
            "bos_token": "<|begin|>",
            "eos_token": eos,
            "additional_special_tokens": ["<|start|>", "<|end|>", "<|eot|>"],
        }
    )
    if template is None:
        ensure_chat_template(tokenizer)
    else:
        tokenizer.chat_template = template
    return tokenizer


def rendered(
    tokenizer: PreTrainedTokenizerFast, imitated: list[int], talk: list[Message] = TALK
) -> TokenizedExample:
    example = Example(4, talk[: imitated[0]], dialogue=Dialogue(talk, imitated))
    return ExampleTokenizer(tokenizer).tokenize([example])[0]


def parts(tokenizer: PreTrainedTokenizerFast, row: TokenizedExample) -> list[tuple[int, str]]:
    """Return runs of the mask with their texts, the prompt first."""
    assert row.response_mask is not None and len(row.response_mask) == len(row.responses["response"])
    runs: list[tuple[int, list[int]]] = [(0, list(row.prompt_tokens))]
    for token, bit in zip(row.responses["response"], row.response_mask, strict=True):
        if runs[-1][0] != bit:
            runs.append((bit, []))
        runs[-1][1].append(token)
    return [(bit, tokenizer.decode(tokens)) for bit, tokens in runs]


def test_a_turn_that_ends_with_gpt2s_only_special_token_gets_no_second_one() -> None:
    tokenizer = tokenizer_with("{% for m in messages %}{{ m['content'] + eos_token }}{% endfor %}")
    tokenizer.unk_token = tokenizer.eos_token
    assert rendered(tokenizer, [2, 4, 6]).responses["response"].count(tokenizer.eos_token_id) == 5


def test_the_plain_template_ends_each_turn_with_the_end_of_sequence() -> None:
    tokenizer = tokenizer_with(None, eos="<eos>")
    row = rendered(tokenizer, [2, 4, 6])
    assert row.prompt_text == "System:\nbe brief\n\nUser:\n1+1?\n\nAssistant:\n"
    assert parts(tokenizer, row) == [
        (0, row.prompt_text),
        (1, "2<eos>"),
        (0, "\n\nUser:\nsure?\n\nAssistant:\n"),
        (1, "yes<eos>"),
        (0, "\n\nUser:\nbye\n\nAssistant:\n"),
        (1, "bye bye<eos>"),
    ]


def test_a_template_with_special_tokens() -> None:
    tokenizer = tokenizer_with(LLAMA)
    row = rendered(tokenizer, [2, 6], [*TALK[:2], chat_message("assistant", " 2 \n"), *TALK[3:]])
    header = "<|start|>assistant<|end|>\n\n"
    opening = "<|begin|><|start|>system<|end|>\n\nbe brief<|eot|><|start|>user<|end|>\n\n1+1?<|eot|>"
    assert parts(tokenizer, row) == [
        (0, opening + header),
        (1, "2<|eot|>"),
        # The turn that is not imitated is read like any other message.
        (
            0,
            f"<|start|>user<|end|>\n\nsure?<|eot|>{header}yes<|eot|><|start|>user<|end|>\n\nbye<|eot|>{header}",
        ),
        (1, "bye bye<|eot|>"),
    ]
    assert row.responses["response"].count(tokenizer.eos_token_id) == 5


def test_what_follows_the_last_imitated_turn_is_left_off() -> None:
    tokenizer = tokenizer_with(None, eos="<eos>")
    assert parts(tokenizer, rendered(tokenizer, [2])) == [
        (0, "System:\nbe brief\n\nUser:\n1+1?\n\nAssistant:\n"),
        (1, "2<eos>"),
    ]


def test_a_template_that_marks_the_turns_itself() -> None:
    tokenizer = tokenizer_with(MARKED)
    row = rendered(tokenizer, [4, 6])
    between = "\n<|start|>user\nbye<|eot|>\n<|start|>assistant\n"
    assert parts(tokenizer, row)[1:] == [(1, "yes<|eot|>"), (0, between), (1, "bye bye<|eot|>")]
    assert row.prompt_text.endswith("sure?<|eot|>\n<|start|>assistant\n")


def test_the_last_turn_ends_where_sampling_ends() -> None:
    """Sampling stops at the template's end of a turn; a template without one needs the end of sequence."""
    tokenizer = tokenizer_with(MARKED, eos="<eos>")
    assert parts(tokenizer, rendered(tokenizer, [2, 4]))[1:] == [
        (1, "2<|eot|>"),
        (0, "\n<|start|>user\nsure?<|eot|>\n<|start|>assistant\n"),
        (1, "yes<|eot|>"),
    ]
    assert parts(tokenizer_with(LINES), rendered(tokenizer_with(LINES), [2, 4]))[1:] == [
        (1, "2\n"),
        (0, "user: sure?\nassistant: "),
        (1, "yes\n<|eot|>"),
    ]


def test_a_mark_that_leaves_out_the_end_of_the_turn() -> None:
    template = MARKED.replace(
        "+ '<|eot|>' }}{% endgeneration %}{{ '\n'", "}}{% endgeneration %}{{ '<|eot|>\n'"
    )
    tokenizer = tokenizer_with(template, eos="<eos>")
    assert [text for bit, text in parts(tokenizer, rendered(tokenizer, [2, 4])) if bit] == [
        "2<|eot|>",
        "yes<|eot|>",
    ]


def test_a_template_that_marks_the_turns_reads_tools_and_variables() -> None:
    template = "{{ tools[0]['name'] + style }}" + MARKED
    tokenizer, tools = tokenizer_with(template), [{"name": "add"}]
    example = Example(0, TALK[:2], dialogue=Dialogue(TALK[:3], [2]), tools=tools)
    (row,) = ExampleTokenizer(tokenizer, {"style": "short"}).tokenize([example])
    assert row.prompt_text.startswith("addshort<|start|>system\nbe brief")
    ids = tokenizer.apply_chat_template(TALK[:3], tools=tools, style="short", return_dict=False)
    assert row.prompt_tokens + row.responses["response"] == ids[:-1]


@pytest.mark.parametrize("template", [None, LLAMA, MARKED, LINES])
def test_the_last_turn_is_the_same_with_last_and_with_all(template: str | None) -> None:
    tokenizer = tokenizer_with(template)
    last = ExampleTokenizer(tokenizer).tokenize([Example(0, TALK[:6], answers={"response": TALK[6]})])[0]
    row = rendered(tokenizer, [6])
    assert (last.prompt_tokens, last.responses) == (row.prompt_tokens, row.responses)


def test_an_opening_that_a_given_answer_does_not_have() -> None:
    """DeepSeek-R1's template opens an answer with <think> and writes given ones without; TRL too trains on
    what both have in common."""
    template = LLAMA.replace("assistant<|end|>\n\n", "assistant<|end|>\n\n<think>\n")
    tokenizer = tokenizer_with(template)
    tokenizer.add_tokens(["<think>", "<tag>"])
    example = Example(0, TALK[:2], answers={"response": chat_message("assistant", "<tag>2")})
    (row,) = ExampleTokenizer(tokenizer).tokenize([example])
    assert row.prompt_text.endswith("<|start|>assistant<|end|>\n\n")
    assert tokenizer.decode(row.responses["response"]) == "<tag>2<|eot|>"
    ids = tokenizer.apply_chat_template([*example.prompt, example.answers["response"]], return_dict=False)
    assert row.prompt_tokens + row.responses["response"] == ids


def test_a_token_across_the_boundary_is_encoded_apart() -> None:
    """The policy samples after the prompt's own ids, where the pair of line breaks is not one token."""
    tokenizer = train_bpe_tokenizer(["a:\n\nb\n\nc\n\n"] * 8, 280)
    tokenizer.add_special_tokens({"eos_token": "<|eot|>"})
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'] + ':\n' + m['content'] + '<|eot|>' }}{% endfor %}"
        "{{ 'assistant:\n' if add_generation_prompt else '' }}"
    )
    talk = [chat_message("user", "b"), chat_message("assistant", "\nc")]
    (row,) = ExampleTokenizer(tokenizer).tokenize([Example(0, talk[:1], answers={"response": talk[1]})])
    assert len(tokenizer("\n\n")["input_ids"]) == 1
    assert row.prompt_tokens == tokenizer("user:\nb<|eot|>assistant:\n")["input_ids"]
    assert row.responses["response"] == tokenizer("\nc<|eot|>")["input_ids"]


def test_whitespace_between_turns_is_excluded() -> None:
    template = LINES.replace("m['content']", "m['content'] + '<|eot|> '")
    tokenizer = tokenizer_with(template, eos="<eos>")
    assert parts(tokenizer, rendered(tokenizer, [2, 4]))[1] == (1, "2<|eot|>")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        # Some templates drop the reasoning of earlier turns in this way.
        (
            LINES.replace("m['content']", "(m['content'] if loop.last else '...')"),
            "rewrites history: it renders message 3",
        ),
        # Turns before the last end differently.
        (
            LINES.replace("m['content']", f"m['content'] + ('<|eot|>' if loop.last and {OWN} else '')"),
            "rewrites history: it renders message 3",
        ),
        # The generation prompt differs from the start of an assistant turn.
        (LINES.replace("'assistant: '", "'assistant: <think>'"), "rewrites history: it renders message 3"),
        # The marks are of a text that nobody would sample.
        (
            MARKED.replace("m['content']", "(m['content'] if loop.last else '...')"),
            "rewrites history: it renders message 3",
        ),
        (
            MARKED.replace(OWN, f"{OWN} and loop.last"),
            "marks 1 parts as the assistant's, which has 3 messages",
        ),
        ("{{ raise_exception('no system role') }}", "the chat template rejects its messages: no system role"),
    ],
)
def test_templates_whose_turns_cannot_be_told_apart(template: str, message: str) -> None:
    with pytest.raises(DataError, match=f"row 5: .*{message}"):
        rendered(tokenizer_with(template), [2, 4])


contents = st.text(st.characters(codec="utf-8", exclude_characters="<\r"), max_size=6)


@settings(deadline=None)
@given(st.lists(st.tuples(contents, contents), min_size=1, max_size=4), st.data())
def test_every_imitated_turn_is_its_words_and_an_end(
    turns: list[tuple[str, str]], data: st.DataObject
) -> None:
    talk = [
        chat_message(role, text)
        for turn in turns
        for role, text in zip(("user", "assistant"), turn, strict=True)
    ]
    own = list(range(1, len(talk), 2))
    imitated = sorted(data.draw(st.sets(st.sampled_from(own), min_size=1)))
    example = Example(0, talk[: imitated[0]], dialogue=Dialogue(talk, imitated))
    tokenizer = train_character_tokenizer(training_texts(example))
    ensure_chat_template(tokenizer)
    (row,) = ExampleTokenizer(tokenizer).tokenize([example])
    learned = [text for bit, text in parts(tokenizer, row) if bit]
    assert learned == [talk[index]["content"] + "<eos>" for index in imitated]
    assert tokenizer.unk_token_id not in [*row.prompt_tokens, *row.responses["response"]]


def test_single_turn_equals_last_turn() -> None:
    """A conversation with one answer has one turn, which is also the last."""
    tokenizer = tokenizer_with(None, eos="<eos>")
    talk = TALK[:3]
    alone = ExampleTokenizer(tokenizer).tokenize([Example(0, talk[:2], answers={"response": talk[2]})])[0]
    row = rendered(tokenizer, [2], talk)
    assert (row.prompt_tokens, row.responses) == (alone.prompt_tokens, alone.responses)
    assert row.response_mask == [1] * len(row.responses["response"])
