"""Text pieces of a response by token, for tokenizers of each kind."""

from collections.abc import Sequence

import pytest

from kubealign_services.data.errors import DataError
from kubealign_services.data.tokenizers import train_byte_level_bpe, train_characters
from kubealign_services.driver.token_texts import TokenTexts, decoder, pieces

TEXT = "Zoë said: 三十 🙂🙂 ok"


def test_bytes_of_a_character_are_added_by_the_last_token() -> None:
    tokenizer = train_byte_level_bpe(["abc"], 300)
    tokens = tokenizer(TEXT)["input_ids"]
    texts = pieces(tokens, TEXT, decoder(tokenizer))
    assert len(texts) == len(tokens) == len(TEXT.encode())
    assert "".join(texts) == TEXT
    # ë is two bytes, an emoji four.
    assert texts[:5] == ["Z", "o", "", "ë", " "]
    assert [piece for piece in texts if piece] == list(TEXT)


def test_a_decoder_that_strips_the_first_space_keeps_the_others() -> None:
    words = ["▁the", "▁cat", "s", "▁sat"]

    def decode(tokens: Sequence[int]) -> str:
        return "".join(words[token] for token in tokens).replace("▁", " ").removeprefix(" ")

    assert pieces([0, 1, 2, 3], "the cats sat", decode) == ["the", " cat", "s", " sat"]


def test_merged_tokens_are_whole_pieces() -> None:
    tokenizer = train_byte_level_bpe(["hello hello hello world world"] * 4, 400)
    tokens = tokenizer("hello world")["input_ids"]
    texts = pieces(tokens, "hello world", decoder(tokenizer))
    assert texts == ["hello", " world"]


def test_a_final_special_token_adds_nothing() -> None:
    tokenizer = train_characters(["12+=3"])
    tokens = [*tokenizer("1+2=3")["input_ids"], tokenizer.eos_token_id]
    assert pieces(tokens, "1+2=3", decoder(tokenizer)) == ["1", "+", "2", "=", "3", ""]


def test_text_behind_a_stop_string_is_left_out() -> None:
    tokenizer = train_byte_level_bpe(["yes\n\n no"] * 9, 300)
    tokens = tokenizer("yes\n\n no")["input_ids"]
    texts = pieces(tokens, "yes\n", decoder(tokenizer))
    assert "".join(texts) == "yes\n"
    assert len(texts) == len(tokens)


def test_a_partial_character_at_the_end_belongs_to_the_last_token() -> None:
    tokenizer = train_byte_level_bpe(["abc"], 300)
    tokens = tokenizer("a🙂")["input_ids"][:-1]
    decode = decoder(tokenizer)
    texts = pieces(tokens, decode(tokens), decode)
    assert "".join(texts) == decode(tokens) != "a"
    assert texts[:-1] == ["a", "", ""]


def test_a_missing_tokenizer_is_loaded_once(caplog: pytest.LogCaptureFixture) -> None:
    asked = []

    def load() -> None:
        asked.append(1)
        raise DataError("the model of policy has gone")

    texts = TokenTexts(load)  # type: ignore[arg-type]
    assert texts([1, 2], "ab") == texts([1], "a") == []
    assert len(asked) == 1
    assert "without their tokens" in caplog.text
