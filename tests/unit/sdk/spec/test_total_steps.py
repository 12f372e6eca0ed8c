"""Number of steps of a job, over which its learning rate schedules extend."""

from typing import Any

import pytest

from kubealign.spec.job import AlignmentJob
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
    ],
)
def test_total_steps(name: str, algorithm: dict[str, Any], rows: int, max_steps: int, steps: int) -> None:
    job = whole_job(name, {"spec.algorithm": algorithm, "spec.maxSteps": max_steps})
    assert AlignmentJob.model_validate(job).spec.total_steps(rows) == steps
