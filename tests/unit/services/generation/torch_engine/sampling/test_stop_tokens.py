"""Sets of stop tokens by row."""

import numpy as np

from kubealign_services.generation.torch_engine.sampling.stop_tokens import StopTokenSets


def test_each_row_has_its_set() -> None:
    ends = StopTokenSets(10)
    numbers = np.array([ends.acquire(frozenset(each)) for each in ((3, 7), (), (3, 7), (5,))])
    assert numbers.tolist() == [0, 1, 0, 2]
    assert ends.contains(numbers, np.array([7, 7, 5, 5])).tolist() == [True, False, False, True]
    rows, tokens = ends.pairs(np.array([0, 1, 3]), numbers[[0, 1, 3]])
    assert list(zip(rows.tolist(), tokens.tolist(), strict=True)) == [(0, 3), (0, 7), (3, 5)]


def test_number_is_free_after_its_last_user() -> None:
    ends = StopTokenSets(10)
    first, again = ends.acquire(frozenset((1,))), ends.acquire(frozenset((1,)))
    ends.release(first)
    assert ends.acquire(frozenset((2, 4))) != first
    ends.release(again)
    assert ends.acquire(frozenset((9,))) == first
    assert ends.contains(np.array([first, first]), np.array([1, 9])).tolist() == [False, True]
    assert ends.pairs(np.array([0]), np.array([first]))[1].tolist() == [9]


def test_tokens_outside_the_vocabulary_are_ignored() -> None:
    ends = StopTokenSets(4)
    number = ends.acquire(frozenset((2, 4, 99)))
    assert ends.pairs(np.array([0]), np.array([number]))[1].tolist() == [2]
