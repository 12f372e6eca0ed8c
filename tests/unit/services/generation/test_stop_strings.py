"""Stop strings over real byte-level tokens."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from kubealign_services.generation.stop_strings import StopStrings

Ids = Callable[[bytes], list[int]]


@pytest.fixture
def decode(tokenizer: PreTrainedTokenizerFast) -> Callable[[Sequence[int]], str]:
    return lambda tokens: str(tokenizer.decode(list(tokens), skip_special_tokens=False))


def follow(
    decode: Callable[[Sequence[int]], str], tokens: list[int], stop: tuple[str, ...], min_tokens: int = 0
) -> tuple[int, str] | None:
    """Return (tokens until the stop, the text before it), with the engine's calls."""
    stops = StopStrings(decode, stop)
    for count in range(1, len(tokens) + 1):
        text = stops.push(tokens[:count], may_stop=count >= min_tokens)
        if text is not None:
            return count, text
    return None


def test_a_stop_string_over_several_tokens(decode: Callable[[Sequence[int]], str], byte_ids: Ids) -> None:
    assert follow(decode, byte_ids(b"say ENDED"), ("END",)) == (7, "say ")


def test_stop_string_inside_a_token(
    decode: Callable[[Sequence[int]], str], tokenizer: PreTrainedTokenizerFast, byte_ids: Ids
) -> None:
    """Token `abc` contains the stop `b`: the token's text before it is kept."""
    (abc,) = tokenizer.encode("abc")
    assert follow(decode, [*byte_ids(b"x"), abc, *byte_ids(b"y")], ("b",)) == (2, "xa")


def test_first_stop_string_in_the_text_wins(
    decode: Callable[[Sequence[int]], str], tokenizer: PreTrainedTokenizerFast
) -> None:
    (abc,) = tokenizer.encode("abc")
    assert follow(decode, [abc], ("c", "bc")) == (1, "a")


def test_multibyte_text_before_a_stop_string(decode: Callable[[Sequence[int]], str], byte_ids: Ids) -> None:
    """The euro sign is three bytes and as many tokens; the stop follows directly."""
    assert follow(decode, byte_ids("1€END".encode()), ("END",)) == (7, "1€")


def test_unfinished_character_after_a_stop_string(
    decode: Callable[[Sequence[int]], str], byte_ids: Ids
) -> None:
    """The stop is found although the byte after it does not decode yet, and not before its own last byte has
    arrived.
    """
    tokens = byte_ids(b"a." + "€".encode()[:1])
    assert follow(decode, tokens, (".",)) == (2, "a")
    assert follow(decode, byte_ids("x€".encode()), ("€",)) == (4, "x")


def test_unfinished_character_in_the_same_token(
    decode: Callable[[Sequence[int]], str], tokenizer: PreTrainedTokenizerFast
) -> None:
    """`a.€` is encoded as `a`, the full stop with the first byte of the euro sign, and its other two bytes:
    the second token completes the stop.
    """
    tokens = tokenizer.encode("a.€")
    assert len(tokens) == 4
    assert follow(decode, tokens, (".",)) == (2, "a")


def test_a_decoder_that_drops_the_space_of_the_first_token() -> None:
    """SentencePiece's words carry a leading space, and decoding drops that of the first word: in a response
    of forty words, each word's space is still found.
    """
    words = [f"▁w{i}" for i in range(40)]
    raw = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0]))
    raw.decoder = decoders.Metaspace()
    assert raw.decode([0, 1]) == "w0 w1"
    for i in range(1, 40):
        before = " ".join(f"w{j}" for j in range(i))
        assert follow(lambda tokens: str(raw.decode(list(tokens))), list(range(40)), (f" w{i}",)) == (
            i + 1,
            before,
        )


def test_invalid_bytes_before_a_stop_string(decode: Callable[[Sequence[int]], str], byte_ids: Ids) -> None:
    """A first byte of an incomplete character, and twenty stray continuation bytes."""
    assert follow(decode, byte_ids(b"\xe2END"), ("END",)) == (4, "\ufffd")
    result = follow(decode, byte_ids(b"\x80" * 20 + b"END"), ("END",))
    assert result is not None and result[0] == 23


def test_a_special_token_is_text_too(decode: Callable[[Sequence[int]], str], byte_ids: Ids) -> None:
    assert follow(decode, [*byte_ids(b"hi"), 271], ("<pad>",)) == (3, "hi")


def test_early_stop_string_does_not_count_later(
    decode: Callable[[Sequence[int]], str], byte_ids: Ids
) -> None:
    """`.` is the second and the fifth token; with at least three tokens, the fifth ends the response."""
    assert follow(decode, byte_ids(b"a.bc."), (".",), min_tokens=3) == (5, "a.bc")
    assert follow(decode, byte_ids(b"a.bc."), (".",), min_tokens=2) == (2, "a")


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    text=st.text(alphabet="abN€😀E.", max_size=40),
    stop=st.text(alphabet="abN€😀E.", min_size=1, max_size=4),
    data=st.data(),
)
def test_any_text_with_any_token_boundaries(
    text: str, stop: str, data: st.DataObject, tokenizer: PreTrainedTokenizerFast, byte_ids: Ids
) -> None:
    """The response ends with the token whose bytes complete the stop, for any division of the text into
    tokens or single bytes.
    """
    encoded = data.draw(st.sampled_from([byte_ids(text.encode()), tokenizer.encode(text)]))
    pieces = [str(tokenizer.decode(encoded[:i])).rstrip("\ufffd") for i in range(len(encoded) + 1)]
    expected = None
    if stop in text:
        length = text.index(stop) + len(stop)
        count = next(i for i, piece in enumerate(pieces) if len(piece) >= length)
        expected = (count, text[: text.index(stop)])
    assert follow(lambda tokens: str(tokenizer.decode(list(tokens))), encoded, (stop,)) == expected


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    text=st.text(alphabet="abN€😀E.", max_size=40),
    stop=st.lists(st.text(alphabet="abN€😀E.", min_size=1, max_size=3), min_size=1, max_size=2).map(tuple),
    min_tokens=st.integers(0, 9),
    cuts=st.lists(st.integers(1, 7), max_size=30),
    data=st.data(),
)
def test_scanning_several_tokens_equals_one_by_one(
    text: str,
    stop: tuple[str, ...],
    min_tokens: int,
    cuts: list[int],
    data: st.DataObject,
    tokenizer: PreTrainedTokenizerFast,
    byte_ids: Ids,
) -> None:
    tokens = data.draw(st.sampled_from([byte_ids(text.encode()), tokenizer.encode(text)]))

    def decode(tokens: Sequence[int]) -> str:
        return str(tokenizer.decode(list(tokens)))

    stops, seen, result = StopStrings(decode, stop), 0, None
    for cut in [*cuts, len(tokens)]:
        seen = min(seen + cut, len(tokens))
        if result is None and tokens:
            result = stops.scan(tokens[:seen], min_tokens)
    assert result == follow(decode, tokens, stop, min_tokens)


def test_a_decoder_that_drops_a_space_and_several_tokens_at_once() -> None:
    """Words with a leading space, as above, scanned four at a time."""
    words = [f"▁w{i}" for i in range(40)]
    raw = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0]))
    raw.decoder = decoders.Metaspace()
    for i in range(1, 40):
        stops = StopStrings(lambda tokens: str(raw.decode(list(tokens))), (f" w{i}",))
        results = [stops.scan(range(seen), 0) for seen in range(4, 41, 4)]
        assert results[i // 4] == (i + 1, " ".join(f"w{j}" for j in range(i)))
        assert results[: i // 4] == [None] * (i // 4)
