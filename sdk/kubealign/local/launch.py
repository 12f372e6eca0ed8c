"""Start of detached runners and termination of runners by process id."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from kubealign.local.admission import folder_of
from kubealign.local.run_lock import RunLock

RUNNER = "runner"


def launch(runs_dir: Path, name: str) -> int:
    """Start a detached runner of the job in RUNS/NAME and return its process id.

    Raises RunRefused where another runner has the job.
    """
    lock = folder_of(runs_dir, name).lock()
    lock.reserve()
    return launch_reserved(runs_dir, name, lock)


def launch_reserved(runs_dir: Path, name: str, lock: RunLock) -> int:
    """Start a detached runner with a lock that the caller has reserved; ownership passes to the runner
    without a gap.
    """
    folder = folder_of(runs_dir, name)
    descriptor = lock.descriptor
    folder.logs.mkdir(exist_ok=True)
    try:
        with folder.log(RUNNER).open("ab") as log:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "kubealign.local.detached",
                    str(runs_dir),
                    name,
                    "--lock",
                    str(descriptor),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=[descriptor],
                # Ctrl-C in this terminal, and its end, must not reach the runner.
                start_new_session=True,
            )
        lock.name(process.pid, alone=True)
    finally:
        lock.hand_over()
    # Reap the runner, so that it leaves no zombie while this process lives.
    threading.Thread(target=process.wait, name=f"runner of {name}", daemon=True).start()
    return process.pid


def stop(pid: int) -> None:
    """Request an orderly stop of a runner; a second request ends it at once."""
    _send(pid, signal.SIGTERM)


def kill(pid: int) -> None:
    """Kill a runner. Its processes end with it."""
    _send(pid, signal.SIGKILL)


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
