"""Length filter and token budgets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubealign.spec.sections.data import OverlongPolicy
from kubealign_services.data.errors import DataError
from kubealign_services.data.tokenization.length_filter import TokenBudget, fit_prompt, token_budget


@pytest.mark.parametrize(
    ("context", "most", "sampled", "expected"),
    [
        (128, None, None, TokenBudget(128, 128)),
        (128, None, 28, TokenBudget(100, 128)),
        (128, 60, 28, TokenBudget(60, 128)),
        (128, 110, 28, TokenBudget(100, 128)),
        (None, 60, 28, TokenBudget(60, None)),
        (None, None, None, TokenBudget(None, None)),
    ],
)
def test_token_budget_of_the_context(
    context: int | None, most: int | None, sampled: int | None, expected: TokenBudget
) -> None:
    assert token_budget(context, most, sampled) == expected


def test_sampled_responses_without_room_are_rejected() -> None:
    with pytest.raises(
        DataError, match=r"maxTokens \(128\) leaves no room for a prompt: the context is 128 tokens"
    ):
        token_budget(128, None, 128)
    assert token_budget(128, None, 127).prompt == 1


def test_truncation_is_from_the_left_and_keeps_the_beginning() -> None:
    prompt = [0, 1, 2, 3, 4, 5]
    assert fit_prompt(prompt, 0, TokenBudget(4, None), OverlongPolicy.TRUNCATE, 0, 0) == [2, 3, 4, 5]
    assert fit_prompt(prompt, 0, TokenBudget(4, None), OverlongPolicy.TRUNCATE, 1, 0) == [0, 3, 4, 5]
    # 3 tokens of response in a context of 6 leave 3.
    assert fit_prompt(prompt, 3, TokenBudget(6, 6), OverlongPolicy.TRUNCATE, 1, 0) == [0, 4, 5]
    # A response that leaves no room: dropped, never cut.
    assert fit_prompt(prompt, 6, TokenBudget(6, 6), OverlongPolicy.TRUNCATE, 0, 0) is None
    assert fit_prompt(prompt, 5, TokenBudget(6, 6), OverlongPolicy.TRUNCATE, 1, 0) is None


def test_drop_and_fail() -> None:
    assert fit_prompt([1, 2, 3], 0, TokenBudget(2, None), OverlongPolicy.DROP, 0, 0) is None
    with pytest.raises(
        DataError, match=r"row 10 is too long: a prompt of 3 tokens and a response of 4.*5 in all"
    ):
        fit_prompt([1, 2, 3], 4, TokenBudget(5, 5), OverlongPolicy.FAIL, 0, 9)


@given(
    prompt=st.lists(st.integers(0, 9), min_size=1, max_size=20),
    response=st.integers(0, 20),
    space=st.builds(TokenBudget, st.none() | st.integers(1, 25), st.none() | st.integers(1, 25)),
    overlong=st.sampled_from([OverlongPolicy.DROP, OverlongPolicy.TRUNCATE]),
    beginning=st.integers(0, 1),
)
def test_kept_rows_fit_the_budget(
    prompt: list[int], response: int, space: TokenBudget, overlong: OverlongPolicy, beginning: int
) -> None:
    remaining = fit_prompt(prompt, response, space, overlong, beginning, 0)
    fits = len(prompt) <= (space.prompt or 99) and len(prompt) + response <= (space.sequence or 99)
    if fits:
        assert remaining == prompt
    elif remaining is not None:
        assert overlong is OverlongPolicy.TRUNCATE
        assert 0 < len(remaining) <= (space.prompt or 99) and len(remaining) + response <= (
            space.sequence or 99
        )
        assert remaining[:beginning] == prompt[:beginning]
        assert remaining[beginning:] == prompt[len(prompt) - len(remaining) + beginning :]
