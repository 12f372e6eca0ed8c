"""Epoch order of rows: each epoch contains each row once, however it is cut."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubealign_services.data.epoch_shuffle import DatasetOrder, EpochCursor, RowDraw, permutation, take_rows

sizes = st.lists(st.integers(1, 9), min_size=1, max_size=12)


@given(rows=st.integers(1, 20), seed=st.integers(0, 2**63 - 1), cuts=sizes, shuffle=st.booleans())
def test_each_epoch_holds_each_row_once(rows: int, seed: int, cuts: list[int], shuffle: bool) -> None:
    cursor, drawn = EpochCursor(), []
    for count in cuts:
        taken, cursor = take_rows(cursor, count, DatasetOrder(rows, seed, shuffle))
        assert len(taken) == count
        drawn += taken
    assert max(Counter(drawn).values()) == 1
    for epoch in range(cursor.epoch):
        assert sorted(draw.row for draw in drawn if draw.source_pass == epoch) == list(range(rows))
    assert len([draw for draw in drawn if draw.source_pass == cursor.epoch]) == cursor.position


@given(rows=st.integers(1, 20), seed=st.integers(0, 9), before=sizes, after=sizes)
def test_cursor_is_sufficient_to_resume(rows: int, seed: int, before: list[int], after: list[int]) -> None:
    full, _ = take_rows(EpochCursor(), sum(before) + sum(after), DatasetOrder(rows, seed))
    cursor, drawn = EpochCursor(), []
    for count in [*before, *after]:
        taken, cursor = take_rows(EpochCursor(cursor.epoch, cursor.position), count, DatasetOrder(rows, seed))
        drawn += taken
    assert drawn == full


@given(rows=st.integers(1, 9), epochs=st.integers(1, 4), count=st.integers(1, 50))
def test_max_epochs_ends_the_rows(rows: int, epochs: int, count: int) -> None:
    taken, cursor = take_rows(EpochCursor(), count, DatasetOrder(rows, 3), max_epochs=epochs)
    assert len(taken) == min(count, rows * epochs)
    rest, cursor = take_rows(cursor, 1000, DatasetOrder(rows, 3), max_epochs=epochs)
    assert len(taken) + len(rest) == rows * epochs
    assert take_rows(cursor, 5, DatasetOrder(rows, 3), max_epochs=epochs) == ([], cursor)


def test_epochs_and_seeds_have_their_own_order() -> None:
    orders = {permutation(50, seed, epoch) for seed in (1, 2) for epoch in (0, 1)}
    assert len(orders) == 4


def test_order_of_existing_jobs_is_unchanged() -> None:
    """The orders that jobs of earlier versions continue with."""
    assert permutation(8, 7, 0) == (7, 2, 1, 3, 0, 6, 5, 4)
    assert permutation(8, 7, 3) == (0, 7, 5, 4, 6, 2, 3, 1)


def test_unshuffled_rows_keep_file_order() -> None:
    taken, cursor = take_rows(EpochCursor(0, 2), 3, DatasetOrder(4, 7, shuffle=False))
    assert taken == [RowDraw(0, 2), RowDraw(0, 3), RowDraw(1, 0)]
    assert cursor == EpochCursor(1, 1)


def test_a_batch_larger_than_the_data_spans_epochs() -> None:
    taken, cursor = take_rows(EpochCursor(), 7, DatasetOrder(3, 1))
    assert [draw.source_pass for draw in taken] == [0, 0, 0, 1, 1, 1, 2]
    assert cursor == EpochCursor(2, 1)


@pytest.mark.parametrize(
    ("cursor", "rows"), [(EpochCursor(), 0), (EpochCursor(0, 5), 5), (EpochCursor(-1, 0), 5)]
)
def test_a_cursor_outside_the_rows_is_refused(cursor: EpochCursor, rows: int) -> None:
    with pytest.raises(ValueError, match="rows"):
        take_rows(cursor, 1, DatasetOrder(rows, 1))
