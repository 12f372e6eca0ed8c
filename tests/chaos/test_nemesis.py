"""Twenty faults into one job, one after another; ten seeds."""

from pathlib import Path

import pytest

from support.chaos.checker import check_run
from support.chaos.clocks import clock_folder
from support.chaos.job import write_chaos_job
from support.chaos.nemesis import Nemesis, proxied
from support.chaos.schedule import make_schedule
from support.chaos.small_disk import small_disk
from support.running import RunningJobs
from support.tiny_jobs import set_pace

FAULTS = 20
STEPS = 240
PACE = 0.3
LONGEST_FAULT_SECONDS = 90.0


@pytest.mark.timeout(3600)
def test_each_fault_ends_in_recovery(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = clock_folder(tmp_path, monkeypatch)
    jobs = write_chaos_job(tmp_path, STEPS, PACE)
    with (
        small_disk(tmp_path / "runs") as is_small,
        proxied(tmp_path),
        RunningJobs(jobs, tmp_path / "runs") as run,
    ):
        faults = make_schedule(
            seed, FAULTS, LONGEST_FAULT_SECONDS, with_small_disk=is_small, with_clocks=True
        )
        run.wait_for_step("chaos", 2)
        nemesis = Nemesis(run, tmp_path, PACE, clocks)
        nemesis.inject(faults)
        set_pace(tmp_path, 0.0)
        assert run.end(900) == 0, run.output
        check_run(run, STEPS, faults)
    print(f"seed {seed}: recovered within {max(nemesis.recoveries):.0f} s")
