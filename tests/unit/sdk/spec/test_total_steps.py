"""Number of steps of a job, over which its learning rate schedules extend."""

from typing import Any

import pytest

from kubealign.spec.job import AlignmentJob, AlignmentJobSpec
from support.bad_specs import whole_job


@pytest.mark.parametrize(
    ("name", "algorithm", "rows", "max_steps", "steps"),
    [
        ("sft", {"sft": {"rowsPerStep": 8}}, 100, 50, 50),
        ("sft", {"sft": {"rowsPerStep": 8, "maxEpochs": 3}}, 100, 50, 38),  # 300 rows: 37 steps and 4 rows
        ("sft", {"sft": {"rowsPerStep": 8, "maxEpochs": 3}}, 96, 50, 36),
        ("sft", {"sft": {"rowsPerStep": 8, "maxEpochs": 3}}, 100, 20, 20),
        ("sft", {"sft": {"rowsPerStep": 64, "maxEpochs": 1}}, 10, 50, 1),
        ("rewardModel", {"rewardModel": {"rowsPerStep": 8, "maxEpochs": 3}}, 100, 50, 38),
        # Prompts are counted, not samples: 2 epochs over 100 prompts, 64 in each step.
        ("grpo", {"grpo": {"promptsPerStep": 64, "samplesPerPrompt": 8, "maxEpochs": 2}}, 100, 50, 4),
        ("grpo", {"grpo": {"promptsPerStep": 64, "samplesPerPrompt": 8}}, 100, 50, 50),
        ("ppo", {"ppo": {"promptsPerStep": 10, "maxEpochs": 2, "epochsPerStep": 4}}, 100, 50, 20),
        ("rloo", {"rloo": {"promptsPerStep": 10, "maxEpochs": 9}}, 100, 50, 50),
        # The epochs alone.
        ("sft", {"sft": {"rowsPerStep": 8, "maxEpochs": 3}}, 100, None, 38),
        ("rloo", {"rloo": {"promptsPerStep": 10, "maxEpochs": 9}}, 100, None, 90),
        # Data is generated once from each row.
        ("rloo", {"generate": {"promptsPerStep": 8}}, 100, 50, 13),
        ("rloo", {"generate": {"promptsPerStep": 8}}, 100, 10, 10),
    ],
)
def test_total_steps(
    name: str, algorithm: dict[str, Any], rows: int, max_steps: int | None, steps: int
) -> None:
    spec = _spec(name, algorithm, max_steps)
    assert spec.total_steps(rows) == spec.known_steps(rows) == steps


@pytest.mark.parametrize(
    ("name", "algorithm", "max_steps", "steps"),
    [
        ("sft", {"sft": {}}, 50, 50),
        ("sft", {"sft": {"maxEpochs": 3}}, 50, None),
        ("rloo", {"rloo": {"maxEpochs": 3}}, None, None),
        ("rloo", {"rejectionSampling": {}}, 50, 50),
        ("rloo", {"generate": {}}, 50, None),
    ],
)
def test_the_number_is_unknown_before_rows_that_decide_it_are_counted(
    name: str, algorithm: dict[str, Any], max_steps: int | None, steps: int | None
) -> None:
    assert _spec(name, algorithm, max_steps).known_steps() == steps


def _spec(name: str, algorithm: dict[str, Any], max_steps: int | None) -> AlignmentJobSpec:
    job = whole_job(name, {"spec.algorithm": algorithm, "spec.maxSteps": max_steps})
    return AlignmentJob.model_validate(job).spec
