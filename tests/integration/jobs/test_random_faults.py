"""A short slice of `make test-chaos`: faults of one seed into one job, and the independent checker."""

from pathlib import Path

import pytest

from support.chaos.checker import check_run
from support.chaos.job import write_chaos_job
from support.chaos.nemesis import Nemesis, proxied
from support.chaos.schedule import make_schedule
from support.running import RunningJobs
from support.tiny_jobs import set_pace

SEED = 5
FAULTS = 6
STEPS = 36
PACE = 0.3
LONGEST_FAULT_SECONDS = 6.0


@pytest.mark.timeout(400)
def test_the_job_recovers_from_each_fault(tmp_path: Path) -> None:
    faults = make_schedule(SEED, FAULTS, LONGEST_FAULT_SECONDS)
    jobs = write_chaos_job(tmp_path, STEPS, PACE)
    with proxied(tmp_path), RunningJobs(jobs, tmp_path / "runs") as run:
        run.wait_for_step("chaos", 2)
        Nemesis(run, tmp_path, PACE).inject(faults)
        set_pace(tmp_path, 0.0)
        assert run.end(200) == 0, run.output
        check_run(run, STEPS, faults)
