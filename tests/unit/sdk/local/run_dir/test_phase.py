"""Phase of a local job, derived from its run directory and lock."""

import subprocess
import sys
from pathlib import Path

import pytest

from kubealign.local.run_dir.layout import RunDirectory
from kubealign.local.run_dir.lock import LockHolder
from kubealign.local.run_dir.phase import RunFacts, derive_phase, read_run_facts
from kubealign.local.run_dir.status import Phase, RunStatus


def status(phase: Phase, runner: int = 7, message: str = "") -> RunStatus:
    return RunStatus(phase=phase, runner=runner, started_at=1.0, message=message)


OWN, OTHER, UNNAMED = LockHolder(7), LockHolder(8, runs_one_job=True), LockHolder(0)
STOPPED = "stopped at step 3; the same command resumes from there"


@pytest.mark.parametrize(
    ("facts", "phase", "says"),
    [
        (RunFacts(None, OTHER), "Pending", "its runner is about to start it"),
        (RunFacts(None, UNNAMED), "Pending", "about to start"),
        (RunFacts(None, None), "Suspended", "its runner ended before the job started, see logs/runner.log"),
        (
            RunFacts(None, None, stop_requested_pid=0),
            "Suspended",
            "suspended before it started; resume it to start it",
        ),
        (RunFacts(status(Phase.RUNNING), OWN), "Running", ""),
        (RunFacts(status(Phase.RUNNING), OWN, stop_requested_pid=7), "Suspending", "checkpoint"),
        # An earlier runner was asked to stop.
        (RunFacts(status(Phase.RUNNING), OWN, stop_requested_pid=6), "Running", ""),
        (RunFacts(status(Phase.RUNNING), None), "Suspended", "its runner (process 7) was killed; resume it"),
        (RunFacts(status(Phase.RUNNING), None, stop_requested_pid=7), "Suspended", "was killed"),
        # Killed, and another runner has just started.
        (RunFacts(status(Phase.RUNNING), OTHER), "Pending", "about to start"),
        (RunFacts(status(Phase.STOPPED, message=STOPPED), None), "Suspended", "stopped at step 3; resume it"),
        # The runner has written its outcome and is exiting.
        (RunFacts(status(Phase.STOPPED, message=STOPPED), OWN), "Suspended", "stopped at step 3"),
        (RunFacts(status(Phase.STOPPED), OTHER), "Pending", ""),
        (RunFacts(status(Phase.FAILED, message="no rows"), None), "Failed", "no rows"),
        (RunFacts(status(Phase.FAILED, message="no rows"), OWN), "Failed", "no rows"),
        (RunFacts(status(Phase.FAILED), OTHER), "Pending", ""),
        (RunFacts(status(Phase.SUCCEEDED), None), "Succeeded", ""),
        # The runner executes another job, and this one finished before.
        (RunFacts(status(Phase.SUCCEEDED), OTHER), "Succeeded", ""),
    ],
)
def test_phase_is_derived_from_the_run_directory(facts: RunFacts, phase: str, says: str) -> None:
    result = derive_phase(facts)
    assert result.phase == phase
    assert says in result.message


def test_reading_the_holder_does_not_take_the_lock(tmp_path: Path) -> None:
    folder = RunDirectory(tmp_path / "tiny")
    folder.create()
    assert folder.lock().read_holder() is None
    lock = folder.lock()
    lock.reserve()
    assert folder.lock().read_holder() == LockHolder(0)
    lock.write_holder(12, runs_one_job=True)
    assert folder.lock().read_holder() == LockHolder(12, runs_one_job=True)
    status(Phase.RUNNING, runner=12).write(folder.status)
    assert read_run_facts(folder) == RunFacts(
        status(Phase.RUNNING, runner=12), LockHolder(12, runs_one_job=True), None
    )
    lock.release()
    assert folder.lock().read_holder() is None
    assert derive_phase(read_run_facts(folder)).phase == "Suspended"


def test_lock_is_acquired_despite_concurrent_readers(tmp_path: Path) -> None:
    folder = RunDirectory(tmp_path / "tiny")
    folder.create()
    # Creates the lock file.
    first = folder.lock()
    first.acquire()
    first.release()
    program = (
        "import sys; from pathlib import Path; from kubealign.local.run_dir.layout import RunDirectory\n"
        f"folder = RunDirectory(Path({str(folder.root)!r}))\n"
        "print('asks', flush=True)\n"
        "while True: folder.lock().read_holder()\n"
    )
    asking = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    try:
        for process in asking:
            assert process.stdout is not None and process.stdout.readline() == "asks\n"
        for _ in range(200):
            lock = folder.lock()
            lock.acquire()
            lock.release()
    finally:
        for process in asking:
            process.kill()
            process.wait(20)
