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
