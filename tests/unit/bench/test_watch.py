"""Resource usage of the sides of a comparison."""

from tests.bench.watch import Highs, Moment, Usage

_MIB = 2**20


def test_memory_is_read_at_a_new_maximum_of_a_group_or_of_the_sum() -> None:
    highs = Highs()
    assert highs.reached({"trainer": 100 * _MIB, "rollout": 50 * _MIB})
    assert not highs.reached({"trainer": 100 * _MIB, "rollout": 50 * _MIB})
    # A new maximum of the trainer, although the sum of 140 is below its maximum of 150.
    assert highs.reached({"trainer": 110 * _MIB, "rollout": 30 * _MIB})
    assert not highs.reached({"trainer": 111 * _MIB, "rollout": 30 * _MIB}), "less than 1 % more"
    # No group is above its maximum of 110 or 50, but the sum of 157 is a new maximum.
    assert highs.reached({"trainer": 108 * _MIB, "rollout": 49 * _MIB})
    assert not highs.reached({"trainer": 110 * _MIB, "rollout": 40 * _MIB}), "110 was reached before"
    assert highs.reached({"trainer": 20 * _MIB, "rollout": 20 * _MIB, "critic": 2 * _MIB}), "a new group"


def test_missing_readings_do_not_lower_the_maximum() -> None:
    highs = Highs()
    assert highs.reached({"trainer": 100 * _MIB})
    sizes = [round(100 * _MIB * 1.009**step) for step in range(1, 4)]
    # Each size is less than 1 % above the previous one; the second is 1.8 % above the last reading.
    assert [highs.reached({"trainer": size}) for size in sizes] == [False, True, False]


def test_peak_covers_the_readings_from_the_start_until_a_time() -> None:
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
