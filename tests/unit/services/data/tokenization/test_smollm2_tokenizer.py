"""Rows of conversations give the tokens of SmolLM2's own tokenizer and chat template."""

from kubealign_services.data.tokenization.end_of_turn import end_of_turn_id
from support.chat_rows import template_ids, tokenize_row
from support.smollm2 import needs_smollm2, smollm2_tokenizer

END = "<|im_end|>"
TALK = [
    {"role": "system", "content": "Answer with one number."},
    {"role": "user", "content": "What is 17 + 25?"},
    {"role": "assistant", "content": " 42\n"},
    {"role": "user", "content": "Et en français, s'il vous plaît? 你好 🙂"},
    {"role": "assistant", "content": "quarante-deux"},
]


@needs_smollm2
def test_rows_give_the_tokens_of_the_template() -> None:
    """All kinds of rows in one test, because the tokenizer takes seconds to load."""
    tokenizer = smollm2_tokenizer()
    assert len(tokenizer) == 49_152
    end = tokenizer.convert_tokens_to_ids(END)
    assert end_of_turn_id(tokenizer) == end
    prompt = template_ids(tokenizer, TALK[:-1], add_generation_prompt=True)
    # The template writes a line break after the last end of turn, which no response has.
    *conversation, line_break = template_ids(tokenizer, TALK)
    assert conversation[-1] == end and tokenizer.decode([line_break]) == "\n"

    for member, columns in {
        "demonstrations": {},
        "ratings": {"rating": 1.0},
        "unpaired": {"label": True},
    }.items():
        row = tokenize_row(tokenizer, member, {"messages": TALK, **columns})
        assert row.prompt_tokens == prompt, member
        assert row.prompt_tokens + row.responses["response"] == conversation, member
    assert tokenize_row(tokenizer, "prompts", {"messages": TALK[:-1]}).prompt_tokens == prompt

    other = [*TALK[:-1], {"role": "assistant", "content": "quarante-trois"}]
    pair = tokenize_row(tokenizer, "preferences", {"chosen": TALK, "rejected": other})
    assert pair.prompt_tokens + pair.responses["chosen"] == conversation
    assert pair.prompt_tokens + pair.responses["rejected"] == template_ids(tokenizer, other)[:-1]

    every = tokenize_row(tokenizer, "demonstrations", {"messages": TALK}, turns="All")
    assert every.prompt_tokens == template_ids(tokenizer, TALK[:2], add_generation_prompt=True)
    assert every.prompt_tokens + every.responses["response"] == conversation
    trained = [
        token
        for token, is_trained in zip(every.responses["response"], every.response_mask or [], strict=True)
        if is_trained
    ]
    assert tokenizer.decode(trained) == f" 42\n{END}quarante-deux{END}"


@needs_smollm2
def test_a_conversation_without_system_message_gets_the_templates() -> None:
    tokenizer = smollm2_tokenizer()
    row = tokenize_row(tokenizer, "prompts", {"messages": TALK[1:2]})
    assert "named SmolLM" in row.prompt_text
    assert row.prompt_tokens == template_ids(tokenizer, TALK[1:2], add_generation_prompt=True)
