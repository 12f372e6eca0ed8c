"""Two drivers on one run directory: the job's own one, stopped at a failpoint, and one outside its
supervisor."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from kubealign_services.runtime.failpoints import FIRED_FOLDER
from support.free_address import free_port
from support.running import RunningJobs

_TOUCH_SECONDS = 1.0


class StoppedDriver:
    """The job's driver, stopped at the failpoint of the first entry until `wake`.

    A context manager. Its liveness file is touched meanwhile, because the supervisor would kill a process
    that is silent for a minute.
    """

    def __init__(self, run: RunningJobs, job: str, timeout: float) -> None:
        """Wait until the driver has stopped at its failpoint."""
        folder = run.folder(job)
        run.wait_until("the failpoint", (folder / FIRED_FOLDER / "0").exists, timeout)
        run.wait_until("the runner's answer", lambda: "driver" in run.processes(job), timeout)
        self._process = psutil.Process(run.processes(job)["driver"]["pid"])
        run.wait_until("the stop", self._is_stopped, timeout)
        _kill_alarm(run, self._process, timeout)
        self._timeout = timeout
        self._liveness = Path(_read_settings(folder)["liveness"])
        self._is_awake = threading.Event()
        self._touching = threading.Thread(target=self._touch, name="liveness", daemon=True)

    def __enter__(self) -> Self:
        self._touching.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_awake.set()
        self._touching.join()

    def wake(self) -> None:
        """Let the driver go on, and wait until it has ended."""
        assert self._is_stopped(), "the first driver has not been stopped all the time"
        self._is_awake.set()
        self._process.send_signal(signal.SIGCONT)
        self._process.wait(self._timeout)

    def _is_stopped(self) -> bool:
        return self._process.status() == psutil.STATUS_STOPPED

    def _touch(self) -> None:
        while not self._is_awake.wait(_TOUCH_SECONDS):
            os.utime(self._liveness)


def _kill_alarm(run: RunningJobs, driver: psutil.Process, timeout: float) -> None:
    """Kill the shell that would wake the driver after the failpoint's seconds, and its sleep."""
    shell = next(child for child in driver.children() if "kill -CONT" in " ".join(child.cmdline()))
    run.wait_until("the alarm", lambda: bool(shell.children()), timeout)
    sleeps = shell.children()
    # The shell first: it would wake the driver as soon as its sleep has ended.
    for process in (shell, *sleeps):
        process.kill()


class SecondDriver:
    """Driver process with the settings of the job's own driver, except for its addresses and its files.

    A context manager that kills the process on exit.
    """

    def __init__(self, folder: Path) -> None:
        """Start the process.

        Args:
            folder: Run directory.
        """
        settings = _read_settings(folder)
        for name in ("listen", "metrics"):
            if settings.get(name) is not None:
                settings[name] = f"127.0.0.1:{free_port()}"
        settings["liveness"] = str(folder / "second-driver.alive")
        settings["termination"] = str(folder / "second-driver.termination")
        path = folder / "settings" / "second-driver.json"
        path.touch(mode=0o600)
        path.write_text(json.dumps(settings))
        self._log = folder / "logs" / "second-driver.log"
        command = [sys.executable, "-m", "kubealign_services.roles.driver.main", str(path)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait(30)

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def end(self, timeout: float) -> int:
        """Wait for the end and return the exit code."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the second driver had not ended:\n{self.log[-4000:]}") from None


def _read_settings(folder: Path) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads((folder / "settings" / "driver.json").read_text())
    return settings
