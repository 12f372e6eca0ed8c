"""Validation of an inference server's answers."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubealign_services.generation.external.contract import ExternalSample
from kubealign_services.generation.external.openai.responses import (
    InvalidAnswer,
    check_end,
    check_logprobs,
    check_tokens,
    read_field,
    select_model,
)
from kubealign_services.runtime.process.failures import PermanentFailure

pytestmark = pytest.mark.timeout(60)

VOCABULARY = 50
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=8), st.integers(8, 20))
def test_tokens_in_range_are_returned(tokens: list[int], most: int) -> None:
    assert check_tokens(tokens, VOCABULARY, most) == tokens


@given(JSON)
def test_any_json_is_tokens_or_refused(value: Any) -> None:
    try:
        tokens = check_tokens(value, VOCABULARY, 3)
    except InvalidAnswer:
        return
    assert 1 <= len(tokens) <= 3
    assert all(type(token) is int and 0 <= token < VOCABULARY for token in tokens)


@given(JSON, st.integers(0, 4))
def test_any_json_is_logprobs_or_refused(value: Any, count: int) -> None:
    try:
        logprobs = check_logprobs(value, count)
    except InvalidAnswer:
        return
    assert len(logprobs) == count
    assert all(type(logprob) is float and logprob <= 1e-3 for logprob in logprobs)


@given(JSON, st.lists(st.text(max_size=3) | st.integers(0, 3), max_size=3))
def test_a_field_of_any_json_is_a_value_or_refused(value: Any, path: list[str | int]) -> None:
    try:
        assert read_field(value, *path) is not None or not path
    except InvalidAnswer as error:
        assert str(error).startswith("the answer has no ")


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([VOCABULARY], r"holds the token 50; the vocabulary has 0 to 49"),
        ([-1], r"holds the token -1"),
        ([True], r"holds the token True"),
        ([1.0], r"holds the token 1\.0"),
        ([], r"has 0 token ids; 3 were asked for at most"),
        ([1] * 4, r"has 4 token ids"),
        (None, r"has None token ids"),
    ],
)
def test_tokens_are_refused(values: Any, reason: str) -> None:
    with pytest.raises(InvalidAnswer, match=reason):
        check_tokens(values, VOCABULARY, 3)


def test_logprobs_are_refused_with_their_number() -> None:
    for values, reason in (
        (None, "2 tokens came with None"),
        ([-1.0], "2 tokens came with 1 log-probabilities"),
        ([-1.0, None], "None is not the log-probability"),
        ([-1.0, math.nan], "nan is not"),
        ([-1.0, 0.1], r"0\.1 is not"),
    ):
        with pytest.raises(InvalidAnswer, match=reason):
            check_logprobs(values, 2)
    assert check_logprobs([-9999.0, 1e-6, -1], 3) == [-math.inf, 1e-6, -1.0]


def test_a_missing_field_has_a_path() -> None:
    answer = {"choices": [{"token_ids": None}]}
    for path, name in (
        (("choices", 0, "token_ids"), r"choices\[0\]\.token_ids"),
        (("choices", 1, "token_ids"), r"choices\[1\]"),
        (("usage", "tokens"), "usage"),
    ):
        with pytest.raises(InvalidAnswer, match=f"the answer has no {name}$"):
            read_field(answer, *path)


def test_a_response_that_the_server_cut_is_refused() -> None:
    sample = ExternalSample([1, 2], [-1.0, -1.0])
    assert check_end(sample, "stop", 5) is sample and check_end(sample, "length", 2) is sample
    with pytest.raises(InvalidAnswer, match="cut at 2 of 5 tokens by a limit of the server"):
        check_end(sample, "length", 5)
    with pytest.raises(InvalidAnswer, match="finish reason is 'abort'"):
        check_end(sample, "abort", 5)


def test_the_served_model_is_selected() -> None:
    one, two = {"id": "a"}, {"id": "b"}
    assert select_model({"data": [one]}, None) is one
    assert select_model({"data": [one, two]}, "b") is two
    for data, name, reason in (
        ([one, two], None, r"model: the server has 2 models \(a, b\): name one"),
        ([], None, r"0 models \(none\)"),
        ([one], "b", "is 'b', which the server does not have; it has a$"),
    ):
        with pytest.raises(PermanentFailure, match=reason):
            select_model({"data": data}, name)
