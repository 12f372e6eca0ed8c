"""Start of detached runners and termination of runners by process id."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from kubealign.local.run_dir.lock import RunLock
from kubealign.local.runner.admission import run_directory

RUNNER_LOG = "runner"


def launch_runner(runs_dir: Path, name: str) -> int:
    """Start a detached runner of the job in RUNS/NAME and return its process id.

    Raises RunRefused where another runner has the job.
    """
    lock = run_directory(runs_dir, name).lock()
    lock.reserve()
    return launch_with_reserved_lock(runs_dir, name, lock)


def launch_with_reserved_lock(runs_dir: Path, name: str, lock: RunLock) -> int:
    """Start a detached runner with a lock that the caller has reserved; ownership passes to the runner
    without a gap.
    """
    folder = run_directory(runs_dir, name)
    descriptor = lock.descriptor
    folder.logs.mkdir(exist_ok=True)
    try:
        with folder.log_path(RUNNER_LOG).open("ab") as log:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "kubealign.local.runner.detached_main",
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
        lock.write_holder(process.pid, runs_one_job=True)
    finally:
        lock.hand_over()
    # Reap the runner, so that it leaves no zombie while this process lives.
    threading.Thread(target=process.wait, name=f"runner of {name}", daemon=True).start()
    return process.pid


def signal_stop(pid: int) -> None:
    """Request an orderly stop of a runner; a second request ends it at once."""
    _send_signal(pid, signal.SIGTERM)


def kill_runner(pid: int) -> None:
    """Kill a runner. Its processes end with it."""
    _send_signal(pid, signal.SIGKILL)


def _send_signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
