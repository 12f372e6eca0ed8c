"""Length filter and token budgets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubealign.spec.data import Overlong
from kubealign_services.data.errors import DataError
from kubealign_services.data.overlong import Room, fit, room


@pytest.mark.parametrize(
    ("context", "most", "sampled", "expected"),
    [
        (128, None, None, Room(128, 128)),
        (128, None, 28, Room(100, 128)),
        (128, 60, 28, Room(60, 128)),
        (128, 110, 28, Room(100, 128)),
        (None, 60, 28, Room(60, None)),
        (None, None, None, Room(None, None)),
    ],
)
def test_token_budget_of_the_context(
    context: int | None, most: int | None, sampled: int | None, expected: Room
) -> None:
    assert room(context, most, sampled) == expected


def test_sampled_responses_without_room_are_rejected() -> None:
    with pytest.raises(
        DataError, match=r"maxTokens \(128\) leaves no room for a prompt: the context is 128 tokens"
    ):
        room(128, None, 128)
    assert room(128, None, 127).prompt == 1


def test_truncation_is_from_the_left_and_keeps_the_beginning() -> None:
    prompt = [0, 1, 2, 3, 4, 5]
    assert fit(prompt, 0, Room(4, None), Overlong.TRUNCATE, 0, 0) == [2, 3, 4, 5]
    assert fit(prompt, 0, Room(4, None), Overlong.TRUNCATE, 1, 0) == [0, 3, 4, 5]
    # 3 tokens of response in a context of 6 leave 3.
    assert fit(prompt, 3, Room(6, 6), Overlong.TRUNCATE, 1, 0) == [0, 4, 5]
    # A response that leaves no room: dropped, never cut.
    assert fit(prompt, 6, Room(6, 6), Overlong.TRUNCATE, 0, 0) is None
    assert fit(prompt, 5, Room(6, 6), Overlong.TRUNCATE, 1, 0) is None


def test_drop_and_fail() -> None:
    assert fit([1, 2, 3], 0, Room(2, None), Overlong.DROP, 0, 0) is None
    with pytest.raises(
        DataError, match=r"row 10 is too long: a prompt of 3 tokens and a response of 4.*5 in all"
    ):
        fit([1, 2, 3], 4, Room(5, 5), Overlong.FAIL, 0, 9)


@given(
    prompt=st.lists(st.integers(0, 9), min_size=1, max_size=20),
    response=st.integers(0, 20),
    space=st.builds(Room, st.none() | st.integers(1, 25), st.none() | st.integers(1, 25)),
    overlong=st.sampled_from([Overlong.DROP, Overlong.TRUNCATE]),
    beginning=st.integers(0, 1),
)
def test_kept_rows_fit_the_budget(
    prompt: list[int], response: int, space: Room, overlong: Overlong, beginning: int
) -> None:
    remaining = fit(prompt, response, space, overlong, beginning, 0)
    fits = len(prompt) <= (space.prompt or 99) and len(prompt) + response <= (space.sequence or 99)
    if fits:
        assert remaining == prompt
    elif remaining is not None:
        assert overlong is Overlong.TRUNCATE
        assert 0 < len(remaining) <= (space.prompt or 99) and len(remaining) + response <= (
            space.sequence or 99
        )
        assert remaining[:beginning] == prompt[:beginning]
        assert remaining[beginning:] == prompt[len(prompt) - len(remaining) + beginning :]
