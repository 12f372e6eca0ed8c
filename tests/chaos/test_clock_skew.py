"""Wall clocks of a job's processes that are an hour ahead or behind lose no work."""

import time
from pathlib import Path

import pytest

from support.chaos.checker import check_run
from support.chaos.clocks import clock_folder, set_clock
from support.chaos.job import NAME, write_chaos_job
from support.running import RunningJobs

STEPS = 30
SKEWS = {
    "driver": -3600.0,
    "rollout-0": 3600.0,
    "rollout-1": 3600.0,
    "rollout-2": 3600.0,
    "trainer-0": 1800.0,
}


@pytest.mark.timeout(600)
def test_clocks_that_differ_by_hours_lose_no_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    jobs = write_chaos_job(tmp_path, STEPS, 0.3)
    clocks = clock_folder(tmp_path, monkeypatch)
    with RunningJobs(jobs, tmp_path / "runs") as run:
        run.wait_for_step(NAME, 2)
        for name, seconds in SKEWS.items():
            set_clock(clocks, run.processes(NAME)[name]["pid"], seconds)
        assert run.end(400) == 0, run.output
        check_run(run, STEPS, [])
    # The driver dates its metrics: its clock was an hour behind to the end.
    assert time.time() - run.metrics(NAME)[-1]["time"] > 3000
    messages = (run.folder(NAME) / "events.jsonl").read_text()
    assert "starting" not in messages, "a process was restarted"
