"""Resource usage of the sides of a comparison."""

from tests.bench.watch import Highs, Moment, Usage

_MIB = 2**20


def test_memory_is_read_where_a_group_or_all_together_hold_more_than_ever() -> None:
    highs = Highs()
    assert highs.reached({"trainer": 100 * _MIB, "rollout": 50 * _MIB})
    assert not highs.reached({"trainer": 100 * _MIB, "rollout": 50 * _MIB})
    # The trainer's own highest, though all together hold 140 and held 150.
    assert highs.reached({"trainer": 110 * _MIB, "rollout": 30 * _MIB})
    assert not highs.reached({"trainer": 111 * _MIB, "rollout": 30 * _MIB}), "less than a hundredth more"
    # Neither holds more than it did, 110 and 50; but never so much at once: 157.
    assert highs.reached({"trainer": 108 * _MIB, "rollout": 49 * _MIB})
    assert not highs.reached({"trainer": 110 * _MIB, "rollout": 40 * _MIB}), "110 it had, though not just now"
    assert highs.reached({"trainer": 20 * _MIB, "rollout": 20 * _MIB, "critic": 2 * _MIB}), "it was not there"


def test_missing_readings_do_not_lower_the_maximum() -> None:
    highs = Highs()
    assert highs.reached({"trainer": 100 * _MIB})
    sizes = [round(100 * _MIB * 1.009**step) for step in range(1, 4)]
    # Each is less than a hundredth above the one before; the second is 1.8 % above what was read.
    assert [highs.reached({"trainer": size}) for size in sizes] == [False, True, False]


def test_a_peak_is_of_what_was_read_until_then_from_the_start() -> None:
    def moment(time: float, sizes: dict[str, int] | None) -> Moment:
        return Moment(time, {}, 0.0, sizes)

    usage = Usage(
        [
            moment(1.0, {"trainer": 30, "rollout": 5}),
            moment(2.0, {"trainer": 20, "rollout": 16}),
            moment(3.0, None),
            moment(4.0, {"trainer": 99, "rollout": 99}),
        ]
    )
    assert usage.peak_bytes(3.5) == ({"trainer": 30, "rollout": 16}, 36)
    assert usage.peak_bytes(0.5) == ({}, 0)
