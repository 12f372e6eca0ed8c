"""Phase of a local job, derived from its run directory and lock."""

import subprocess
import sys
from pathlib import Path

import pytest

from kubealign.local.run_folder import RunFolder
from kubealign.local.run_lock import Holder
from kubealign.local.run_status import Phase, RunStatus
from kubealign.local.standing import Facts, read_facts, standing


def status(phase: Phase, runner: int = 7, message: str = "") -> RunStatus:
    return RunStatus(phase=phase, runner=runner, started_at=1.0, message=message)


OWN, OTHER, UNNAMED = Holder(7), Holder(8, alone=True), Holder(0)
STOPPED = "stopped at step 3; the same command resumes from there"


@pytest.mark.parametrize(
    ("facts", "phase", "says"),
    [
        (Facts(None, OTHER), "Pending", "its runner is about to start it"),
        (Facts(None, UNNAMED), "Pending", "about to start"),
        (Facts(None, None), "Suspended", "its runner ended before the job started, see logs/runner.log"),
        (Facts(None, None, told=0), "Suspended", "suspended before it started; resume it to start it"),
        (Facts(status(Phase.RUNNING), OWN), "Running", ""),
        (Facts(status(Phase.RUNNING), OWN, told=7), "Suspending", "checkpoint"),
        # An earlier runner was asked to stop.
        (Facts(status(Phase.RUNNING), OWN, told=6), "Running", ""),
        (Facts(status(Phase.RUNNING), None), "Suspended", "its runner (process 7) was killed; resume it"),
        (Facts(status(Phase.RUNNING), None, told=7), "Suspended", "was killed"),
        # Killed, and another runner has just started.
        (Facts(status(Phase.RUNNING), OTHER), "Pending", "about to start"),
        (Facts(status(Phase.STOPPED, message=STOPPED), None), "Suspended", "stopped at step 3; resume it"),
        # The runner has written its outcome and is exiting.
        (Facts(status(Phase.STOPPED, message=STOPPED), OWN), "Suspended", "stopped at step 3"),
        (Facts(status(Phase.STOPPED), OTHER), "Pending", ""),
        (Facts(status(Phase.FAILED, message="no rows"), None), "Failed", "no rows"),
        (Facts(status(Phase.FAILED, message="no rows"), OWN), "Failed", "no rows"),
        (Facts(status(Phase.FAILED), OTHER), "Pending", ""),
        (Facts(status(Phase.SUCCEEDED), None), "Succeeded", ""),
        # The runner executes another job, and this one finished before.
        (Facts(status(Phase.SUCCEEDED), OTHER), "Succeeded", ""),
    ],
)
def test_phase_is_derived_from_the_run_directory(facts: Facts, phase: str, says: str) -> None:
    found = standing(facts)
    assert found.phase == phase
    assert says in found.message


def test_reading_the_holder_does_not_take_the_lock(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "tiny")
    folder.make()
    assert folder.lock().holder() is None
    lock = folder.lock()
    lock.reserve()
    assert folder.lock().holder() == Holder(0)
    lock.name(12, alone=True)
    assert folder.lock().holder() == Holder(12, alone=True)
    status(Phase.RUNNING, runner=12).write(folder.status)
    assert read_facts(folder) == Facts(status(Phase.RUNNING, runner=12), Holder(12, alone=True), None)
    lock.release()
    assert folder.lock().holder() is None
    assert standing(read_facts(folder)).phase == "Suspended"


def test_lock_is_acquired_despite_concurrent_readers(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "tiny")
    folder.make()
    # Creates the lock file.
    first = folder.lock()
    first.acquire()
    first.release()
    program = (
        "import sys; from pathlib import Path; from kubealign.local.run_folder import RunFolder\n"
        f"folder = RunFolder(Path({str(folder.root)!r}))\n"
        "print('asks', flush=True)\n"
        "while True: folder.lock().holder()\n"
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
