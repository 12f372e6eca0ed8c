"""The end of the assistant's turn, with templates that write more than that token after an answer."""

import pytest

from kubealign_services.data.tokenization.end_of_turn import end_of_turn_id
from kubealign_services.data.tokenization.tokenizers import train_bpe_tokenizer
from support.chat_templates import FAMILIES, ChatFamily


def end_of_turn(template: str | None, eos: str = "<|eos|>", unknown: str | None = None) -> str | None:
    tokenizer = train_bpe_tokenizer(["assistant user end"], 280)
    special = ["<|end|>", "<|start|>", "<|close|>"]
    tokenizer.add_special_tokens({"eos_token": eos, "additional_special_tokens": special})
    if unknown is not None:
        tokenizer.unk_token = unknown
    tokenizer.chat_template = template
    token = end_of_turn_id(tokenizer)
    return None if token is None else str(tokenizer.convert_ids_to_tokens(token))


def turns(end: str, after: str = "") -> str:
    """Return a template whose turns end with `end`, and conversations with `after`."""
    turn = "{{ '<|start|>' + m['role'] + ':' + m['content'] + END }}".replace("END", repr(end))
    return f"{{% for m in messages %}}{turn}{{% endfor %}}{after}"


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_families(family: ChatFamily) -> None:
    tokenizer = family.tokenizer()
    assert end_of_turn_id(tokenizer) == tokenizer.get_vocab()[family.end]


def test_an_opening_that_is_always_appended() -> None:
    """Llama 3's first template opened the next answer with and without add_generation_prompt."""
    assert end_of_turn(turns("<|end|>", "{{ '<|start|>assistant:' }}")) == "<|end|>"


def test_an_end_of_sequence_after_the_last_turn() -> None:
    """Phi 3's template ends the conversation with the end-of-sequence token, in addition to each turn's."""
    assert end_of_turn(turns("<|end|>\n", "{{ eos_token }}")) == "<|end|>"
    assert end_of_turn(turns("\n", "{{ eos_token }}")) == "<|eos|>"


def test_a_wrapped_answer_ends_with_the_end_of_sequence() -> None:
    """Command R's template closes the answer, then the turn."""
    assert end_of_turn(turns("<|close|><|end|>"), eos="<|end|>") == "<|end|>"


def test_an_end_of_sequence_that_stands_for_unknown_text_too() -> None:
    """GPT-2's tokenizer has one special token for both."""
    assert end_of_turn(turns("<|eos|>"), unknown="<|eos|>") == "<|eos|>"
    assert end_of_turn(turns("<|end|>"), unknown="<|end|>") is None


@pytest.mark.parametrize(
    "template",
    [None, turns("\n"), "{{ raise_exception('no') }}", "{{ messages[0].parts[0] + 1 }}", "no messages"],
)
def test_no_token_ends_the_turn(template: str | None) -> None:
    assert end_of_turn(template) is None
