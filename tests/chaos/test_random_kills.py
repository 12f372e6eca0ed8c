"""250 faults at random times, one every 2.5 seconds on average, most of them SIGKILL."""

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.chaos.checker import check_history, check_metrics, check_replay
from support.chaos.job import NAME, PROCESSES, write_chaos_job
from support.chaos.nemesis import inject_at_random
from support.chaos.schedule import Fault, FaultKind
from support.running import RunningJobs, left_running
from support.tiny_jobs import set_pace

FAULTS = 250
MEAN_PAUSE_SECONDS = 2.5
STEPS = 150
STOP_SECONDS = 3.0


def random_faults(generator: random.Random) -> Iterator[Fault]:
    """Yield a kill of a random process nine times out of ten, otherwise a short stop."""
    for number in itertools.count():
        target = generator.choice(PROCESSES)
        if number % 10 == 0:
            yield Fault(FaultKind.STOP, target, STOP_SECONDS)
        else:
            yield Fault(FaultKind.KILL, target)


def random_pauses(generator: random.Random) -> Iterator[float]:
    while True:
        yield generator.expovariate(1 / MEAN_PAUSE_SECONDS)


@pytest.mark.timeout(3600)
def test_a_job_survives_250_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    generator = random.Random(20)
    # Slow enough that the job does not end before the faults do.
    with RunningJobs(write_chaos_job(tmp_path, STEPS, 5.0), tmp_path / "runs") as run:
        run.wait_for_step("chaos", 1)
        inject_at_random(run, random_faults(generator), random_pauses(generator), FAULTS)
        assert run.is_running, f"the job ended before the faults did:\n{run.output}"
        set_pace(tmp_path, 0.0)
        assert run.end(1200) == 0, run.output
        check_history(run.folder(NAME), STEPS)
        check_metrics(run.folder(NAME), STEPS)
        check_replay(run.folder(NAME), STEPS)
        assert left_running(run.runs) == {}
