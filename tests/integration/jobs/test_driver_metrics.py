"""The metrics of a step survive a driver that dies after its TrainStep."""

import json
from pathlib import Path

import pytest

from kubealign_services.runtime.failpoints import FILE, Action, Failpoint
from support.running import RunningJobs, run_command, trained_steps
from support.tiny_jobs import FROM_CONFIG, online_job, write_jobs

STEPS = 6
#: Metrics that need the time of the TrainStep, which a successor cannot know.
UNKNOWN = ("seconds/train", "tokens_per_second")


def test_a_successor_reports_the_step_of_a_dead_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    ppo = {"promptsPerStep": 2, "samplesPerPrompt": 2}
    job = online_job(
        tmp_path,
        "metrics",
        {"ppo": ppo},
        maxSteps=STEPS,
        checkpoint={"everySteps": STEPS, "recordBatches": True},
        critic={"model": FROM_CONFIG},
    )
    folder = tmp_path / "runs" / "metrics"
    folder.mkdir(parents=True)
    # Steps 2 and 3: the second driver begins with the record of step 2.
    entries = [
        {"name": name, "action": Action.KILL, "process": "driver", "hit": 2}
        for name in (Failpoint.STEP_AFTER_TRAIN, Failpoint.HISTORY_AFTER_APPEND)
    ]
    (folder / FILE).write_text(json.dumps(entries))
    with RunningJobs(write_jobs(tmp_path, job), tmp_path / "runs", "--no-dashboard") as run:
        assert run.end(150) == 0, run.output
    lines = trained_steps(folder)
    assert [(step, line["fence"]) for step, line in lines.items()] == [
        (1, 1), (2, 2), (3, 3), (4, 3), (5, 3), (6, 3)
    ]  # fmt: skip
    expected = {name for name in lines[6] if not name.startswith(UNKNOWN)}
    for step in (2, 3):
        assert expected - lines[step].keys() == set()
        assert lines[step]["seconds/step"] > 0
    # A replay compares the metrics of all steps.
    replay = run_command("replay", "metrics", "--runs-dir", str(tmp_path / "runs"), timeout=150)
    assert replay.code == 0, replay.output
    assert f"metrics of {STEPS} steps: equal bit for bit" in replay.output
