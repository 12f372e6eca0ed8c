"""The replay of a recorded run gives the same numbers, bit for bit."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.running import EndedCommand, RunningJobs, left_running, run_command
from support.tiny_jobs import online_job, write_jobs

pytestmark = pytest.mark.timeout(240)

RATE = "spec.trainer.optimizer.adamW.learningRate"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Record six asynchronous steps with two workers, of an algorithm with state between steps."""
    folder = tmp_path_factory.mktemp("replay")
    job = online_job(
        folder,
        "recorded",
        {
            "grpo": {
                "promptsPerStep": 6,
                "samplesPerPrompt": 4,
                "maxStaleness": 2,
                "kl": {"placement": "Reward", "adaptive": {"target": 0.01, "horizon": 50}},
            }
        },
        maxSteps=6,
        checkpoint={"everySteps": 3, "recordBatches": True},
    )
    job["spec"]["rollout"]["replicas"] = 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        with RunningJobs(write_jobs(folder, job), folder / "runs", "--no-dashboard") as run:
            assert run.end(150) == 0, run.output
    yield folder / "runs"
    assert left_running(folder) == {}


def replay(runs: Path, *options: str) -> EndedCommand:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        return run_command("replay", "recorded", "--runs-dir", str(runs), *options, timeout=150)


def steps(folder: Path) -> dict[int, dict[str, float]]:
    lines = (json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: line for line in lines}


def test_the_same_losses_and_the_same_weights(runs: Path) -> None:
    done = replay(runs)
    assert done.code == 0, done.output
    assert "metrics of 6 steps: equal bit for bit\nfinal weights: equal bit for bit\n" in done.output
    # Verify the command's claim by the recorded metrics and weights.
    recorded, again = steps(runs / "recorded"), steps(runs / "recorded-replay")
    assert sorted(again) == [1, 2, 3, 4, 5, 6]
    for step, figures in again.items():
        for name in ("trainer/loss", "trainer/gradient_norm", "kl/reference", "advantage/std"):
            assert figures[name] == recorded[step][name], (step, name)
        assert "reward/mean" not in figures
    weights = "result/model.safetensors"
    assert (runs / "recorded-replay" / weights).read_bytes() == (runs / "recorded" / weights).read_bytes()
    logs = {path.name for path in (runs / "recorded-replay" / "logs").iterdir()}
    assert {"trainer-0.log", "driver.log"} < logs
    assert not any(name.startswith(("rollout", "reward", "prepare", "reference")) for name in logs)


def test_steps_after_a_commit(runs: Path) -> None:
    done = replay(runs, "--from-step", "4", "--steps", "2", "--name", "part")
    assert done.code == 0, done.output
    assert "metrics of 2 steps: equal bit for bit\n" in done.output
    assert sorted(steps(runs / "part")) == [4, 5]


def test_another_learning_rate_on_the_same_samples(runs: Path) -> None:
    done = replay(runs, "--set", f"{RATE}=0.05", "--name", "fast")
    assert done.code == 0, done.output
    assert (
        "step 1 is the first that differs, in trainer/learning_rate: 0.001 recorded, 0.05 now" in done.output
    )
    assert "final weights: not equal" in done.output


def test_altered_and_missing_batches_are_named(runs: Path) -> None:
    path = runs / "recorded" / "batches" / "step-00000002.safetensors"
    before = path.read_bytes()
    try:
        path.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
        done = replay(runs, "--name", "spoilt")
        assert done.code == 2
        assert done.output.startswith(f"step 2: {path} has been altered: its checksum is")
        path.unlink()
        done = replay(runs, "--name", "spoilt")
        assert done == EndedCommand(2, f"step 2: {path} is missing\n")
    finally:
        path.write_bytes(before)
    assert not (runs / "spoilt").exists()
