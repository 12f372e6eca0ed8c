"""Sizing measurements from the steps of a run, against a known engine."""

from typing import Any

import pytest

from kubealign.bench.from_run import measure_run
from kubealign.bench.measurements import SizingError, StepShape, compute_sizing
from kubealign.spec.job import AlignmentJob
from support.bad_specs import whole_job

SYNC = StepShape(prompts=16, samples=4, max_sequences=64, staleness=0, flows=False, replicas=2)
ASYNC = StepShape(prompts=16, samples=4, max_sequences=64, staleness=2, flows=True, replicas=2)


def step(number: int, generate: float, mean: float, longest: float, **more: float) -> dict[str, Any]:
    return {
        "step": number,
        "seconds/step": generate + 4.5,
        "seconds/generate": generate,
        "seconds/train": 3.0,
        "seconds/score": 0.25,
        "seconds/logprobs": 0.5,
        "seconds/refit": 0.25,
        "refit/bytes": 1000,
        "response/length": mean,
        "response/length_max": longest,
    } | more


def fitted_steps(pairs: list[tuple[float, float]], a: float, b: float) -> dict[int, dict[str, Any]]:
    """Return steps of (mean, longest) by an engine whose passes take a + b n."""
    lines = {1: step(1, 100.0, 9.0, 9.0)}
    for number, (mean, longest) in enumerate(pairs, 2):
        lines[number] = step(number, a * longest + b * mean * 64 / 2, mean, longest)
    return lines


def test_pass_costs_are_fitted_from_steps_of_different_lengths() -> None:
    result = measure_run(
        "rec", fitted_steps([(20, 100), (30, 90), (25, 200), (40, 120)], 0.02, 0.001), SYNC, 512
    )
    assert result.passes == [(1, pytest.approx(0.021)), (64, pytest.approx(0.02 + 0.064))]
    assert (result.train_seconds, result.before_seconds, result.refit_seconds) == (3.0, 0.5, 0.25)
    # 4.5 s besides generation, 4.0 s of them measured.
    assert result.rest_seconds == pytest.approx(0.5) and result.refit_bytes == 1000
    assert result.assumed == ["the cost of prompts is included in the seconds of generation"]
    assert result.source == "4 steps of rec, with 2 rollout workers"


def test_collinear_steps_are_reported_as_an_assumption() -> None:
    result = measure_run("rec", fitted_steps([(32, 64)] * 4, 0.02, 0.001), SYNC, 64)
    assert "too similar to tell" in result.assumed[0]
    # For any split of the cost the same workers take the same time: 0.02 x 64 + 0.001 x 32 x 32 = 2.304.
    (_, second) = compute_sizing(result, SYNC, 2).rows
    assert second.generate == pytest.approx(2.304, rel=0.15)


def test_fitted_costs_are_never_negative() -> None:
    # Steps with longer responses took less time: without the bound, b would be negative.
    lines = {
        n: step(n, seconds, 10.0, longest)
        for n, (seconds, longest) in enumerate([(9.0, 9.0), (2.0, 100.0), (3.0, 50.0), (4.0, 30.0)], 1)
    }
    (_, one), (_, many) = measure_run("rec", lines, SYNC, 512).passes
    assert 0 < one <= many


def test_asynchronous_run_is_measured_where_its_trainer_waited() -> None:
    # In 10 s two workers generated 64 x 25 tokens: 80 a second each, 64 at a time, so 0.8 s a pass.
    lines = {n: step(n, 5.0, 25.0, 100.0) | {"seconds/step": 10.0} for n in range(1, 6)}
    result = measure_run("rec", lines, ASYNC, 512)
    assert result.passes[1] == (64, pytest.approx(0.8))
    assert "an asynchronous run cannot tell" in result.assumed[0]
    idle = {n: line | {"seconds/generate": 0.1} for n, line in lines.items()}
    with pytest.raises(SizingError, match=r"hardly waited \(1 % of a step\).*its 2 rollout workers"):
        measure_run("rec", idle, ASYNC, 512)


def test_insufficient_runs_are_rejected() -> None:
    with pytest.raises(SizingError, match="3 steps are too few: at least 4"):
        measure_run("rec", fitted_steps([(20, 100), (30, 90)], 0.02, 0.001), SYNC, 512)
    rows = {n: {"step": n, "seconds/step": 1.0, "seconds/train": 1.0} for n in range(1, 6)}
    with pytest.raises(SizingError, match="lack response/length, response/length_max, seconds/generate"):
        measure_run("rec", rows, SYNC, 512)


def test_step_shape_is_derived_from_the_job() -> None:
    def shape(algorithm: str, changes: dict[str, Any]) -> StepShape:
        return StepShape.from_job(AlignmentJob.model_validate(whole_job(algorithm, changes)))

    entry = {"promptsPerStep": 6, "samplesPerPrompt": 3, "maxStaleness": 2}
    rollout = {"replicas": 3, "engine": {"torch": {"maxSequences": 9}}, "refit": {"inFlight": "Continue"}}
    result = shape("grpo", {"spec.algorithm": {"grpo": entry}, "spec.rollout": rollout})
    assert result == StepShape(6, 3, 9, 2, True, 3)
    # remax adds a greedy response to each sample.
    greedy = shape("rloo", {"spec.algorithm": {"remax": {"promptsPerStep": 6, "samplesPerPrompt": 1}}})
    assert (greedy.samples, greedy.sequences) == (2, 12)
    for without, word in (("sft", "sft"), ("rewardModel", "reward_model")):
        with pytest.raises(SizingError, match=f"{word} does not sample in its steps"):
            shape(without, {})
