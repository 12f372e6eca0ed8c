"""A job through the real command whose loss needs entropies and collision probabilities of the old policy."""

from pathlib import Path

import pytest

from support.running import RunningJobs
from support.tiny_jobs import online_job, write_jobs

pytestmark = pytest.mark.timeout(300)


def test_outputs_of_the_pass_before_the_step_reach_advantages_and_loss(tmp_path: Path) -> None:
    algorithm = {
        "grpo": {
            "promptsPerStep": 4,
            "samplesPerPrompt": 4,
            "minibatchSequences": 8,
            "kl": {"placement": "Loss", "fixed": {"coefficient": 0.0}},
            "advantage": {"center": "OptimalToken"},
            "topEntropyFraction": 0.5,
            "trustRegion": {"clipCov": {"fraction": 0.1, "low": 0.0, "high": 100.0}},
        }
    }
    file = write_jobs(tmp_path, online_job(tmp_path, "selected", algorithm, maxSteps=3))
    with RunningJobs(file, tmp_path / "runs", "--no-dashboard") as run:
        assert run.end(200) == 0, run.output
        steps = run.steps("selected")
    assert list(steps) == [1, 2, 3]
    for metrics in steps.values():
        assert 0.5 <= metrics["policy/high_entropy_fraction"] < 0.75
        assert metrics["policy/entropy_threshold"] > 0
        assert 0 < metrics["policy/high_covariance_fraction"] <= 0.125
        assert metrics["advantage/std"] > 0
