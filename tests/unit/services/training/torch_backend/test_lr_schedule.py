"""Learning rates computed by hand."""

import math

import pytest

from kubealign.spec.sections.training import (
    ConstantSchedule,
    CosineSchedule,
    LearningRateSchedule,
    LinearSchedule,
)
from kubealign_services.training.torch_backend.optimizer import learning_rate


def rates(schedule: LearningRateSchedule, total: int) -> list[float]:
    return [learning_rate(schedule, 8.0, step, total) for step in range(total)]


def test_constant_after_warm_up() -> None:
    # 8 * 1/4, 2/4, 3/4, 4/4, then 8.
    schedule = LearningRateSchedule(constant=ConstantSchedule(warmup_steps=4))
    assert rates(schedule, 6) == [2.0, 4.0, 6.0, 8.0, 8.0, 8.0]


def test_linear_decays_over_its_last_fraction_to_the_floor() -> None:
    # 2 of warm-up, 8 after it, of which the last half falls in quarters from 8 to 8 * 0.25 = 2: 6.5, 5, 3.5,
    # 2.
    schedule = LearningRateSchedule(linear=LinearSchedule(warmup_steps=2, decay_fraction=0.5, floor=0.25))
    assert rates(schedule, 10) == [4.0, 8.0, 8.0, 8.0, 8.0, 8.0, 6.5, 5.0, 3.5, 2.0]


def test_linear_without_decay_is_constant() -> None:
    assert rates(LearningRateSchedule(linear=LinearSchedule(decay_fraction=0.0)), 3) == [8.0, 8.0, 8.0]


def test_cosine_decays_to_the_floor() -> None:
    # 4 steps; after step k the angle is pi (k + 1) / 4. floor 0.5: 4 + 4 (1 + cos) / 2.
    schedule = LearningRateSchedule(cosine=CosineSchedule(floor=0.5))
    expected = [4 + 2 * (1 + math.cos(math.pi * quarter / 4)) for quarter in (1, 2, 3, 4)]
    assert rates(schedule, 4) == pytest.approx(expected)
    assert expected[1] == pytest.approx(6.0) and expected[3] == pytest.approx(4.0)


def test_steps_beyond_the_end_stay_at_the_floor() -> None:
    assert learning_rate(LearningRateSchedule(cosine=CosineSchedule(floor=0.5)), 8.0, 99, 4) == pytest.approx(
        4.0
    )


@pytest.mark.parametrize("kind", [ConstantSchedule, LinearSchedule, CosineSchedule])
def test_warm_up_as_a_fraction_of_the_job(kind: type) -> None:
    # A tenth of 30 steps is 3, although 0.1 * 30 is 3.0000000000000004: 8 / 3, 16 / 3, 8.
    member = kind.__name__.removesuffix("Schedule").lower()
    schedule = LearningRateSchedule(**{member: kind(warmup_fraction=0.1)})
    assert rates(schedule, 30)[:3] == pytest.approx([8 / 3, 16 / 3, 8.0])
    assert rates(schedule, 30) == rates(LearningRateSchedule(**{member: kind(warmup_steps=3)}), 30)


def test_cosine_with_a_constant_phase_before_the_decay() -> None:
    # 1 of warm-up, 8 after it, of which the last half decays: cos of pi k / 4, floor 0.
    schedule = LearningRateSchedule(cosine=CosineSchedule(warmup_steps=1, decay_fraction=0.5, floor=0.0))
    decay = [4 * (1 + math.cos(math.pi * quarter / 4)) for quarter in (1, 2, 3, 4)]
    assert rates(schedule, 9) == pytest.approx([8.0, 8.0, 8.0, 8.0, 8.0, *decay])


def test_the_schedule_of_spin_in_nemo_aligner() -> None:
    # NeMo's CosineAnnealing with max_steps 400, warmup_steps 40, constant_steps 100, lr 5e-7, min_lr 1e-7:
    # its cosine falls over max_steps - warmup_steps - constant_steps = 260 steps.
    schedule = LearningRateSchedule(cosine=CosineSchedule(warmup_steps=40, floor=0.2, floor_steps=100))
    actual = [learning_rate(schedule, 5e-7, step, 400) for step in range(400)]
    assert actual[39] == pytest.approx(5e-7)
    assert actual[40 + 129] == pytest.approx(3e-7)  # the middle: half of 4e-7 above the floor
    assert actual[299:] == pytest.approx([1e-7] * 101)
    assert actual[298] > 1e-7


def test_a_floor_longer_than_the_job_follows_the_warm_up() -> None:
    schedule = LearningRateSchedule(cosine=CosineSchedule(warmup_steps=2, floor=0.5, floor_steps=9))
    assert rates(schedule, 5) == [4.0, 8.0, 4.0, 4.0, 4.0]
