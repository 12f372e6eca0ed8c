"""Text pieces of a response by token, for tokenizers of each kind."""

from collections.abc import Sequence
from functools import partial

import pytest

from kubealign_services.data.errors import DataError
from kubealign_services.data.tokenization.tokenizers import (
    decode_ids,
    train_bpe_tokenizer,
    train_character_tokenizer,
)
from kubealign_services.roles.driver.metrics.sample_logging import TokenSplitter, split_by_token

TEXT = "Zoë said: 三十 🙂🙂 ok"


def test_bytes_of_a_character_are_added_by_the_last_token() -> None:
    tokenizer = train_bpe_tokenizer(["abc"], 300)
    tokens = tokenizer(TEXT)["input_ids"]
    texts = split_by_token(tokens, TEXT, partial(decode_ids, tokenizer))
    assert len(texts) == len(tokens) == len(TEXT.encode())
    assert "".join(texts) == TEXT
    # ë is two bytes, an emoji four.
    assert texts[:5] == ["Z", "o", "", "ë", " "]
    assert [piece for piece in texts if piece] == list(TEXT)


def test_a_decoder_that_strips_the_first_space_keeps_the_others() -> None:
    words = ["▁the", "▁cat", "s", "▁sat"]

    def decode(tokens: Sequence[int]) -> str:
        return "".join(words[token] for token in tokens).replace("▁", " ").removeprefix(" ")

    assert split_by_token([0, 1, 2, 3], "the cats sat", decode) == ["the", " cat", "s", " sat"]


def test_merged_tokens_are_whole_pieces() -> None:
    tokenizer = train_bpe_tokenizer(["hello hello hello world world"] * 4, 400)
    tokens = tokenizer("hello world")["input_ids"]
    texts = split_by_token(tokens, "hello world", partial(decode_ids, tokenizer))
    assert texts == ["hello", " world"]


def test_a_final_special_token_adds_nothing() -> None:
    tokenizer = train_character_tokenizer(["12+=3"])
    tokens = [*tokenizer("1+2=3")["input_ids"], tokenizer.eos_token_id]
    assert split_by_token(tokens, "1+2=3", partial(decode_ids, tokenizer)) == ["1", "+", "2", "=", "3", ""]


def test_text_behind_a_stop_string_is_left_out() -> None:
    tokenizer = train_bpe_tokenizer(["yes\n\n no"] * 9, 300)
    tokens = tokenizer("yes\n\n no")["input_ids"]
    texts = split_by_token(tokens, "yes\n", partial(decode_ids, tokenizer))
    assert "".join(texts) == "yes\n"
    assert len(texts) == len(tokens)


def test_a_partial_character_at_the_end_belongs_to_the_last_token() -> None:
    tokenizer = train_bpe_tokenizer(["abc"], 300)
    tokens = tokenizer("a🙂")["input_ids"][:-1]
    decode = partial(decode_ids, tokenizer)
    texts = split_by_token(tokens, decode(tokens), decode)
    assert "".join(texts) == decode(tokens) != "a"
    assert texts[:-1] == ["a", "", ""]


def test_a_missing_tokenizer_is_loaded_once(caplog: pytest.LogCaptureFixture) -> None:
    asked = []

    def load() -> None:
        asked.append(1)
        raise DataError("the model of policy has gone")

    texts = TokenSplitter(load)  # type: ignore[arg-type]
    assert texts([1, 2], "ab") == texts([1], "a") == []
    assert len(asked) == 1
    assert "without their tokens" in caplog.text
