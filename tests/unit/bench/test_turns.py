"""Seconds of two sides that use the machine in turns."""

from tests.bench.turns import Turn, seconds_of


def test_seconds_count_only_own_turns() -> None:
    turns = [Turn(0, 1.0, 1.5), Turn(1, 1.5, 2.0), Turn(0, 2.0, 2.5), Turn(1, 2.75, 3.0)]
    assert seconds_of(turns, 0, 0.0, 9.0) == 1.0
    # From 1.25: 0.25 of the first turn, and 0.125 of the third.
    assert seconds_of(turns, 0, 1.25, 2.125) == 0.375
    assert seconds_of(turns, 1, 1.25, 2.875) == 0.625
    assert seconds_of(turns, 1, 2.0, 2.75) == 0.0
