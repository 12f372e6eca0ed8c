"""Steps of responses, and the tokens with which they end, with a byte-level tokenizer."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from kubealign_services.scoring.response_steps import ResponseStep, find_last_tokens, split_steps

#: Text of which the tokenizer learns words and line breaks; other characters have a token for each byte.
CORPUS = ["First add.\n\nThen carry.\n\nSo the sum is 12.\n\n\n\nDone."] * 20


def train_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, special_tokens=["<end>"])
    )
    return tokenizer


TOKENIZER = train_tokenizer()


def decode(tokens: Sequence[int]) -> str:
    return str(TOKENIZER.decode(list(tokens), skip_special_tokens=False))


def slow_last_tokens(steps: Sequence[ResponseStep], response: str, tokens: Sequence[int]) -> list[int]:
    """Return the last token of each step from the bytes of each token: the first one that reaches the step's
    end in UTF-8."""
    # A byte-level tokenizer writes each byte as one character.
    pieces = [len(TOKENIZER.id_to_token(token)) for token in tokens]
    ends = [sum(pieces[: index + 1]) for index in range(len(tokens))]
    bounds = [len(response[: step.end].encode()) for step in steps]
    positions = [next(i for i, end in enumerate(ends) if end >= bound) for bound in bounds]
    return [*positions[:-1], len(tokens) - 1] if steps else []


@pytest.mark.parametrize(
    ("response", "steps"),
    [
        ("", []),
        (" \n\n\t", []),
        ("one", [("one", 3)]),
        ("one\n\ntwo", [("one", 5), ("two", 8)]),
        ("\n\none\n\n\n\ntwo\n\n", [("one", 9), ("two", 14)]),
        ("one\n\n \n\ntwo", [("one", 8), ("two", 11)]),
        ("é\n\nü", [("é", 3), ("ü", 4)]),
    ],
)
def test_steps_are_the_parts_that_are_not_blank(response: str, steps: list[tuple[str, int]]) -> None:
    assert split_steps(response, "\n\n") == [ResponseStep(text, end) for text, end in steps]


def test_by_hand() -> None:
    """Tokens that hold the end of a step and the beginning of the next, the end token, and a stop string."""
    texts = ["a", ".\n", "\nb", "\n\n", "c", "STOP", "<end>"]

    def join(tokens: Sequence[int]) -> str:
        return "".join(texts[token] for token in tokens)

    response = "a.\n\nb\n\nc"
    steps = split_steps(response, "\n\n")
    assert find_last_tokens(steps, response, range(7), join) == [2, 3, 6]
    assert find_last_tokens(split_steps("a.", "\n\n"), "a.", range(2), join) == [1]
    assert find_last_tokens([], "", [], join) == []


def test_steps_that_end_in_one_token_have_the_same_token() -> None:
    def join(tokens: Sequence[int]) -> str:
        return "".join(["x;y;", "z"][token] for token in tokens)

    assert find_last_tokens(split_steps("x;y;z", ";"), "x;y;z", [0, 1], join) == [0, 0, 1]


def test_a_text_of_other_tokens_is_refused() -> None:
    tokens = TOKENIZER.encode("First add.").ids
    with pytest.raises(
        ValueError, match=f"text of the {len(tokens)} tokens does not begin with the response"
    ):
        find_last_tokens(split_steps("Other\n\ntext", "\n\n"), "Other\n\ntext", tokens, decode)


@given(
    st.lists(
        st.sampled_from(["\n\n", "\n", "First add.", " Then", "é", "日本", "🙂", "a ", "12"]), max_size=20
    ),
    st.booleans(),
)
def test_equals_the_bytes_of_each_token(parts: list[str], has_end_token: bool) -> None:
    response = "".join(parts)
    tokens = TOKENIZER.encode(response).ids + [TOKENIZER.token_to_id("<end>")] * has_end_token
    steps = split_steps(response, "\n\n")
    assert find_last_tokens(steps, response, tokens, decode) == slow_last_tokens(steps, response, tokens)
