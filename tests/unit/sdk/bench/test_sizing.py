"""Sizing rule: numbers worked by hand, and invariants for any measurements."""

import math
import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubealign.bench.engine_speed import EngineSpeed
from kubealign.bench.generation_time import (
    StepWorkload,
    generation_times,
    simulate_worker,
    steady_state_seconds,
)
from kubealign.bench.response_lengths import ResponseLengths, fit_lengths
from kubealign.bench.sizing import StepCosts, recommend_workers

#: A pass takes 1 s, and 0.5 s more for each further sequence.
SPEED = EngineSpeed([(1, 1.0), (3, 2.0)], max_sequences=2)
EVEN = EngineSpeed([(1, 1.0)], max_sequences=100)


@pytest.mark.parametrize(
    ("running", "seconds"),
    [(1, 1.0), (2, 2.0), (3, 3.0), (4, 6.5), (5, 6.5), (6, 6.5), (7, 7.0), (8, 7.5), (10, 8.5)],
)
def test_pass_time_is_interpolated_and_extrapolated(running: int, seconds: float) -> None:
    # The time of 4 sequences is capped by that of 6; of the two times of 3 sequences the shorter one counts.
    points = [(6, 6.5), (3, 3.0), (3, 3.5), (1, 1.0), (4, 9.0), (8, 7.5)]
    assert EngineSpeed(points, max_sequences=10).seconds_per_pass(running) == pytest.approx(seconds)


def test_one_worker_with_two_slots() -> None:
    # 3 and 1 run together for one pass of 1.5 s. Then 2 takes the slot of 1: two passes of 1.5 s.
    assert simulate_worker(SPEED, [3, 1, 2]) == [(1.5, 1), (4.5, 2), (4.5, 3)]
    # In another order 3 takes the slot of 1, and after one more pass of 1.5 s runs alone: two passes of 1 s.
    assert simulate_worker(SPEED, [1, 2, 3]) == [(1.5, 1), (3.0, 2), (5.0, 3)]


def test_workers_share_the_prompts() -> None:
    # Two groups of two responses of four tokens: one worker runs two at a time, four passes of 1.5 s, twice.
    speed = EngineSpeed(SPEED.points, 2, prompt_tokens_per_second=10.0)
    work = StepWorkload([4, 4, 4, 4], samples=2, prompt_tokens=5.0)
    # 2 prompts x 5 tokens / 10 a second = 1 s, half a second for each of two workers; a third stays idle.
    assert [each.seconds for each in generation_times(work, speed, 3)] == pytest.approx([13.0, 6.5, 6.5])


def test_scoring_overlaps_generation() -> None:
    # All four end after ten passes: no scoring overlaps. One scorer takes 0.5 s for each.
    alike = generation_times(StepWorkload([10] * 4, samples=1), EVEN, 1, scoring=2.0)
    assert (alike[0].seconds, alike[0].scoring_tail) == (10.0, 2.0)
    # They end at 1, 2, 3 and 10 s; the last one has ten of sixteen tokens: 2 s x 10 / 16.
    apart = generation_times(StepWorkload([1, 2, 3, 10], samples=1), EVEN, 1, scoring=2.0)
    assert (apart[0].seconds, apart[0].scoring_tail) == (10.0, pytest.approx(1.25))
    # At 1 s a token the scorer is done with the first three at 7 s, and takes 10 s for the last one.
    slow = generation_times(StepWorkload([1, 2, 3, 10], samples=1), EVEN, 1, scoring=16.0)
    assert slow[0].scoring_tail == pytest.approx(10.0)
    # At 3 s a token the scorer is never idle after the first second.
    busy = generation_times(StepWorkload([1, 2, 3, 10], samples=1), EVEN, 1, scoring=48.0)
    assert busy[0].scoring_tail == pytest.approx(1 + 48 - 10)


def test_steady_state_seconds() -> None:
    work = StepWorkload([1, 1, 1, 5], samples=1)
    # 8 tokens, two at a time in 1.5 s: 6 s for one worker. The longest takes 5 x 1.5 = 7.5 s, over two steps.
    assert steady_state_seconds(work, SPEED, 1, 1, most=100.0) == pytest.approx(6.0)
    # Two workers: 3 s of tokens, so the longest response dominates, half of it in each of the two steps.
    assert steady_state_seconds(work, SPEED, 2, 1, most=100.0) == pytest.approx(3.75)
    assert steady_state_seconds(work, SPEED, 2, 1, most=3.5) == 3.5
    # With enough slots the eight of both steps run at a time: 1 + 7 x 0.5 = 4.5 s a pass, 5 / 2 passes.
    roomy = EngineSpeed(SPEED.points, max_sequences=100)
    assert steady_state_seconds(work, roomy, 1, 1, most=100.0) == pytest.approx(11.25)


def test_synchronous_step_is_sequential() -> None:
    work = StepWorkload([10] * 8, samples=1)
    speed = EngineSpeed([(1, 1.0), (9, 9.0)], max_sequences=8)
    costs = StepCosts(train=10.0, before=3.0, score=1.0, refit=4.0, rest=2.0)
    result = recommend_workers(work, speed, costs, staleness=0, flows=False, most=4)
    # A pass of n sequences takes n seconds: 8 sequences of 10 tokens take 80 s, shared by the workers.
    assert [row.generate for row in result.rows] == pytest.approx([80.0, 40.0, 30.0, 20.0])
    assert [row.step for row in result.rows] == pytest.approx([100.0, 60.0, 50.0, 40.0])
    assert [row.idle for row in result.rows] == pytest.approx([0.87, 1 - 13 / 60, 0.74, 1 - 13 / 40])
    assert (result.workers, result.enough) == (4, False)
    assert result.sentence == (
        "At least 4 rollout workers, the maximum that was considered: a step takes 40 s and the trainer "
        "waits 68 % of it, and more would still help."
    )


def test_recommends_the_fewest_cost_effective_workers() -> None:
    # 8 workers run one sequence each, and more change nothing. From 4 to 8 workers a step of 1,020 s is 10 s
    # shorter: 1 %. From 2 to 3 a step of 1,040 s is 10 s shorter.
    work = StepWorkload([10] * 8, samples=1)
    speed = EngineSpeed([(1, 1.0), (9, 9.0)], max_sequences=8)
    result = recommend_workers(work, speed, StepCosts(train=1000.0), staleness=0, flows=False, most=10)
    assert (result.workers, result.enough) == (1, True)
    assert result.sentence == (
        "1 rollout worker: a step takes 1,080 s and the trainer waits 7 % of it; one more would make it 4 % "
        "shorter."
    )
    # With four groups three workers are no faster than two, but four are: the plateau is not the optimum.
    plateau = recommend_workers(
        StepWorkload([10] * 4, samples=1), EVEN_BY_LENGTH, StepCosts(1.0), 0, False, 8
    )
    assert [row.generate for row in plateau.rows] == pytest.approx([40, 20, 20, 10, 10, 10, 10, 10])
    assert plateau.workers == 4


EVEN_BY_LENGTH = EngineSpeed([(1, 1.0)], max_sequences=1)


def test_asynchronous_step_takes_its_slowest_side() -> None:
    work = StepWorkload([10] * 8, samples=1)
    speed = EngineSpeed([(1, 1.0), (9, 9.0)], max_sequences=8)
    costs = StepCosts(train=30.0, before=3.0, score=50.0, refit=4.0, rest=2.0)
    result = recommend_workers(work, speed, costs, staleness=1, flows=False, most=4)
    # Workers: 84, 44, 34, 24 s. Trainer: 35 s. Scoring overlaps.
    assert [row.step for row in result.rows] == pytest.approx([84.0, 44.0, 35.0, 35.0])
    assert result.workers == 3 and result.chosen.idle == pytest.approx(2 / 35)
    assert result.sentence == (
        "3 rollout workers keep the trainer busy: a step takes 35 s and the trainer waits 6 % of it; with "
        "one fewer it would wait 25 %."
    )


def test_superfluous_workers_idle() -> None:
    # Six responses may be in flight. Three workers run two each; of four, each runs one.
    result = recommend_workers(StepWorkload([1, 1, 1], samples=1), EVEN, StepCosts(train=0.1), 1, True, 4)
    assert [row.step for row in result.rows] == pytest.approx([0.5, 0.5, 0.5, 0.5])


def test_why_an_asynchronous_trainer_cannot_be_kept_busy() -> None:
    work = StepWorkload([100, 1, 1, 1], samples=1)
    slow = StepCosts(train=1.0)
    dry = recommend_workers(work, EVEN, slow, staleness=1, flows=False, most=4)
    assert dry.sentence.endswith("with rollout.refit.inFlight Continue they would not.")
    value = recommend_workers(work, EVEN, slow, staleness=1, flows=True, most=4)
    # The longest response has 100 tokens of a second each, over two steps.
    assert value.chosen.step == pytest.approx(51.5) or value.chosen.step == pytest.approx(50.0)
    assert value.sentence.endswith("The longest responses limit it, which more workers do not shorten.")


@given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=12),
    points=st.lists(st.tuples(st.integers(1, 64), st.floats(1e-4, 1.0)), min_size=1, max_size=5),
    costs=st.tuples(*[st.floats(0, 50)] * 6),
    staleness=st.integers(1, 4),
    flows=st.booleans(),
    slots=st.integers(1, 64),
)
@settings(deadline=None, max_examples=30)
def test_more_workers_are_never_slower_nor_is_an_asynchronous_job(
    lengths: list[int],
    points: list[tuple[int, float]],
    costs: tuple[float, ...],
    staleness: int,
    flows: bool,
    slots: int,
) -> None:
    work, speed = StepWorkload(lengths, samples=1), EngineSpeed(points, slots, 1000.0)
    passes = [speed.seconds_per_pass(running) for running in range(1, 70, 3)]
    assert all(more >= less * (1 - 1e-12) for less, more in pairwise(passes))
    given_costs = StepCosts(*costs)
    one_after_the_other = recommend_workers(work, speed, given_costs, 0, flows, most=4).rows
    overlapping = recommend_workers(work, speed, given_costs, staleness, flows, most=4).rows
    for rows in (one_after_the_other, overlapping):
        steps = [row.step for row in rows]
        assert steps == sorted(steps, reverse=True)
        assert all(0 <= row.idle <= 1 and row.generate > 0 for row in rows)
    for sync, async_ in zip(one_after_the_other, overlapping, strict=True):
        assert async_.step <= sync.step * (1 + 1e-12)
    # Generation takes at least as long as the longest response alone in an engine.
    assert one_after_the_other[-1].generate >= max(lengths) * speed.seconds_per_pass(1) * (1 - 1e-9)


@given(count=st.integers(1, 80), longest=st.integers(1, 2000), share=st.floats(0, 1), spread=st.floats(0, 2))
@settings(deadline=None, max_examples=50)
def test_quantiles_have_the_requested_mean(count: int, longest: int, share: float, spread: float) -> None:
    mean = 1 + share * (longest - 1)
    result = ResponseLengths(mean, longest, spread).quantiles(count)
    assert result == sorted(result) and len(result) == count
    assert result[0] >= 1 and result[-1] <= longest
    # Each length is rounded by at most a half.
    assert abs(sum(result) / count - mean) <= 0.5 + 1e-6 * longest


def test_zero_spread_gives_equal_lengths() -> None:
    assert ResponseLengths(7.0, 50, 0.0).quantiles(3) == [7, 7, 7]
    # Log-normal with spread 1: median m, quantiles m exp(+-z), with z = 0.6745 at the quartiles.
    low, high = ResponseLengths(100.0, 10**6, 1.0).quantiles(2)
    assert high / low == pytest.approx(math.exp(2 * 0.6745), rel=0.02)
    for mean in (0.5, 51.0):
        with pytest.raises(ValueError, match=r"it may be 1 to the longest, 50"):
            ResponseLengths(mean, 50)


def test_fit_recovers_the_spread() -> None:
    # The largest of 64 lengths is near the quantile 64 / 65, 2.160 deviations up. With mean 64 and largest
    # 320: ln 5 = 1.609 = 2.160 s - s^2 / 2 at s = 0.958.
    result = fit_lengths([60.0, 68.0], [300.0, 340.0], 64, 512)
    assert (result.mean, result.longest) == (64.0, 512)
    assert result.spread == pytest.approx(0.958, abs=0.001)
    assert result.spread * 2.160 - result.spread**2 / 2 == pytest.approx(math.log(5), abs=0.002)
    assert fit_lengths([8.0], [8.0], 64, 512).spread == pytest.approx(0.0)
    # A spread above that of any log-normal gives the widest one.
    assert fit_lengths([2.0], [500.0], 64, 512).spread == pytest.approx(2.160, abs=0.001)


@pytest.mark.parametrize("points", [[], [(0, 1.0)], [(1, 0.0)]])
def test_empty_engine_speed_is_rejected(points: list[tuple[int, float]]) -> None:
    with pytest.raises(ValueError, match="points of"):
        EngineSpeed(points, 4)


def test_the_arithmetic_imports_no_torch() -> None:
    code = (
        "import sys, kubealign.bench.from_run, kubealign.bench.measurements; "
        "import kubealign.cli.views.sizing_view; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'kubealign_services')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
