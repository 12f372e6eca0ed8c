"""Losses and weights that are not finite: the job stops, and the step's batch is saved for analysis."""

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from kubealign_services.checkpoints.store import CheckpointReader
from support.tiny_jobs import online_job, write_reward

pytestmark = pytest.mark.timeout(180)

RLOO = {"rloo": {"promptsPerStep": 4, "samplesPerPrompt": 2}}


def evidence(folder: Path, step: int) -> dict[str, Any]:
    path = folder / "runs" / "bad" / "evidence" / f"step-{step:06d}.safetensors"
    samples = path.with_suffix(".samples.txt").read_text().split()
    assert len(samples) == 8, "4 prompts with 2 samples each"
    return load_file(path)


def test_a_loss_that_overflows(tmp_path: Path, failed) -> None:
    """Check the overflow of a difference of two finite rewards: 3e38 - -3e38 > 3.4e38 in float32."""
    source = (
        "def reward(prompts, responses):\n    return [[3e38, -3e38][len(set(r)) % 2] for r in responses]\n"
    )
    output = failed(online_job(tmp_path, "bad", RLOO, rewards=[write_reward(tmp_path, source, "huge")]))
    assert "driver: step 1: trainer TrainStep: at optimiser step 1 the loss is " in output
    assert "the weights stay as they were" in output
    assert f"its batch is kept in {tmp_path / 'runs/bad/evidence/step-000001.safetensors'}" in output
    columns = evidence(tmp_path, 1)
    assert not columns["token.advantages"].isfinite().all(), "it shows the cause"


def test_weights_that_an_update_destroyed(tmp_path: Path, failed) -> None:
    """Check that destroyed weights are detected before any sampling with them; earlier checkpoints stay
    intact."""
    optimizer = {"adamW": {"learningRate": 1.0e30}}
    output = failed(
        online_job(tmp_path, "bad", RLOO, trainer={"optimizer": optimizer}, checkpoint={"everySteps": 1})
    )
    assert "driver: step 1: trainer PublishWeights: weights of version 1 give log-prob" in output
    assert "that are not finite" in output
    assert "the learning rate in spec.trainer.optimizer may be too high" in output
    assert len(evidence(tmp_path, 1)["sequence.rewards"]) == 8
    assert CheckpointReader(tmp_path / "runs" / "bad").latest() is None
