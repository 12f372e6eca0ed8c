"""Trained tokenizers, tokenised examples, and the boundary between prompt and response."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, processors
from transformers import LlamaConfig, PreTrainedTokenizerFast

from kubealign_services.data.errors import DataError
from kubealign_services.data.rows.example import Example
from kubealign_services.data.tokenization.chat_template import (
    ChatTemplate,
    ensure_chat_template,
    plain_template_texts,
)
from kubealign_services.data.tokenization.example_tokenizer import ExampleTokenizer, training_texts
from kubealign_services.data.tokenization.tokenizers import (
    check_same_vocabulary,
    check_vocabulary,
    ensure_pad_token,
    load_tokenizer,
    prefix_ids,
    train_bpe_tokenizer,
    train_character_tokenizer,
)

TEXTS = ["12+34=", "46", "User:\nab\n\nAssistant:\n"]
MESSAGES = [{"role": "user", "content": "ab"}]


def with_beginning(eos: bool = True) -> PreTrainedTokenizerFast:
    """Return a character tokenizer without a pad token that adds <s> and </s> around a text."""
    vocabulary = {token: index for index, token in enumerate(["<s>", "</s>", *"abAUsitn:er\n"])}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.decoder = decoders.Fuse()
    core.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    special = {"eos_token": "</s>"} if eos else {}
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=core, bos_token="<s>", **special
    )


def test_characters_are_tokens_in_their_order() -> None:
    tokenizer = train_character_tokenizer(["12+3=", "a\n"])
    # <pad> <eos> <unk>, then \n + 1 2 3 = a
    assert tokenizer("1+a\n=")["input_ids"] == [5, 4, 9, 3, 8]
    assert tokenizer("1?")["input_ids"] == [5, 2]
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id, len(tokenizer)) == (
        0,
        1,
        2,
        10,
    )


@given(st.text())
def test_byte_level_bpe_knows_every_text(text: str) -> None:
    tokenizer = _BPE
    ids = tokenizer(text.replace("<", ""))["input_ids"]
    assert tokenizer.decode(ids) == text.replace("<", "")


_BPE = train_bpe_tokenizer(["the cat sat on the mat, the cat"] * 3, 300)


def test_training_is_repeatable_and_bounded() -> None:
    texts = [f"number {n} and {n * 7} again" for n in range(200)]
    first, second = (train_bpe_tokenizer(iter(texts), 320) for _ in range(2))
    assert first.backend_tokenizer.to_str() == second.backend_tokenizer.to_str()
    assert len(first) == 320
    assert (
        train_character_tokenizer(texts).get_vocab() == train_character_tokenizer(reversed(texts)).get_vocab()
    )


@pytest.mark.parametrize("tokenizer", [train_character_tokenizer(TEXTS), _BPE])
def test_saved_and_loaded_they_are_the_same(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    ensure_chat_template(tokenizer)
    tokenizer.save_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path, "policy.model")
    assert loaded.get_vocab() == tokenizer.get_vocab()
    assert loaded("12+34=")["input_ids"] == tokenizer("12+34=")["input_ids"]
    assert loaded.chat_template == tokenizer.chat_template
    assert (loaded.pad_token_id, loaded.eos_token_id) == (0, 1)


def test_empty_texts_are_rejected() -> None:
    with pytest.raises(DataError, match="the texts are empty"):
        train_character_tokenizer(["", ""])


def test_a_missing_pad_token_is_the_end_and_no_new_token(tmp_path: Path) -> None:
    with_beginning().save_pretrained(tmp_path)
    tokenizer = load_tokenizer(tmp_path, "policy.model")
    size = len(tokenizer)
    assert ensure_pad_token(tokenizer)
    assert (tokenizer.pad_token_id, len(tokenizer)) == (tokenizer.eos_token_id, size)
    assert not ensure_pad_token(tokenizer)


def test_tokenizers_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"policy\.model: .* holds no tokenizer"):
        load_tokenizer(tmp_path, "policy.model")
    with_beginning(eos=False).save_pretrained(tmp_path)
    with pytest.raises(DataError, match="has no end-of-sequence token"):
        load_tokenizer(tmp_path, "policy.model")


def test_a_vocabulary_that_does_not_fit() -> None:
    tokenizer = train_character_tokenizer(["0123456789"])
    check_vocabulary(LlamaConfig(vocab_size=13), tokenizer, "policy.model")
    check_vocabulary(LlamaConfig(vocab_size=64), tokenizer, "policy.model")
    with pytest.raises(DataError, match="ids up to 12, the model's vocabulary has 12 entries"):
        check_vocabulary(LlamaConfig(vocab_size=12), tokenizer, "policy.model")
    check_same_vocabulary(train_character_tokenizer(["9876543210"]), tokenizer, "rewards[0].model")
    with pytest.raises(DataError, match=r"rewards\[0\].*1 of 14 tokens differ.*'x'"):
        check_same_vocabulary(train_character_tokenizer(["0123456789x"]), tokenizer, "rewards[0].model")


def test_prompt_and_response_are_tokenised_apart() -> None:
    tokenizer = train_bpe_tokenizer(["ab ab ab ab"] * 4, 270)
    joined = tokenizer("ab")["input_ids"]
    (rendered,) = ExampleTokenizer(tokenizer).tokenize([Example(0, "a", {"response": "b"})])
    assert len(joined) == 1
    assert rendered.prompt_tokens == tokenizer("a")["input_ids"]
    assert rendered.responses == {"response": [*tokenizer("b")["input_ids"], tokenizer.eos_token_id]}


def test_a_text_prompt_begins_as_the_tokenizer_begins_it_and_does_not_end() -> None:
    tokenizer = with_beginning()
    assert tokenizer("ab")["input_ids"] == [0, 2, 3, 1]
    assert prefix_ids(tokenizer) == [0]
    (rendered,) = ExampleTokenizer(tokenizer).tokenize([Example(0, "ab", {"chosen": "a", "rejected": ""})])
    assert rendered.prompt_tokens == [0, 2, 3]
    assert rendered.responses == {"chosen": [2, 1], "rejected": [1]}


def test_messages_have_one_beginning_token() -> None:
    tokenizer = with_beginning()
    assert ensure_chat_template(tokenizer)
    (rendered,) = ExampleTokenizer(tokenizer).tokenize([Example(0, MESSAGES)])
    assert rendered.prompt_text == "<s>User:\nab\n\nAssistant:\n"
    assert rendered.prompt_tokens[0] == 0 and rendered.prompt_tokens.count(0) == 1
    assert not ensure_chat_template(tokenizer)


def test_the_tokenizers_own_template_is_kept() -> None:
    tokenizer = train_character_tokenizer(["[ab]"])
    tokenizer.chat_template = "[{{ messages[0]['content'] }}]{% if add_generation_prompt %}[{% endif %}"
    assert not ensure_chat_template(tokenizer)
    (rendered,) = ExampleTokenizer(tokenizer).tokenize([Example(0, MESSAGES)])
    assert rendered.prompt_text == "[ab]["


def test_plain_template_text_is_the_training_text() -> None:
    conversation = [*MESSAGES, {"role": "assistant", "content": "b"}, {"role": "user", "content": "a"}]
    tokenizer = train_character_tokenizer(training_texts(Example(0, conversation)))
    ensure_chat_template(tokenizer)
    (rendered,) = ExampleTokenizer(tokenizer).tokenize([Example(0, conversation)])
    assert rendered.prompt_text == "User:\nab\n\nAssistant:\nb<eos>\n\nUser:\na\n\nAssistant:\n"
    assert tokenizer.unk_token_id not in rendered.prompt_tokens
    assert rendered.prompt_tokens.count(tokenizer.eos_token_id) == 1
    assert "".join(plain_template_texts(MESSAGES)) == "User:\nab\n\n"


def test_template_error_is_reported() -> None:
    tokenizer = train_character_tokenizer(TEXTS)
    tokenizer.chat_template = "{{ raise_exception('no system role') }}"
    with pytest.raises(DataError, match="row 5: the chat template rejects its messages: no system role"):
        ChatTemplate(tokenizer).render(MESSAGES, Example(4, MESSAGES))


def test_an_empty_prompt_needs_a_beginning() -> None:
    with pytest.raises(DataError, match="row 3: the prompt '' has no tokens"):
        ExampleTokenizer(train_character_tokenizer(TEXTS)).tokenize([Example(2, "")])
    assert ExampleTokenizer(with_beginning()).tokenize([Example(2, "")])[0].prompt_tokens == [0]


def test_a_folder_of_another_models_type_keeps_its_own_plain_tokenizer(tmp_path: Path) -> None:
    """AutoTokenizer would add Qwen's own tokens and normaliser for a folder with only a qwen2 config."""
    from transformers import AutoConfig

    trained = train_character_tokenizer(["abc"])
    trained.save_pretrained(tmp_path)
    AutoConfig.for_model("qwen2", vocab_size=len(trained)).save_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path, "here")
    assert loaded.get_vocab() == trained.get_vocab()
