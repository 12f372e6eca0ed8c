"""Runs `kubealign run` as a process that a test observes and disturbs."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from kubealign.local.errors import RunRefused
from kubealign.local.run_dir.control_socket import list_processes, scale
from kubealign_services.checkpoints.history import read_history
from support.preloaded_process import PreloadedProcess

KUBEALIGN = Path(sys.executable).with_name("kubealign")
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class EndedCommand:
    """Result of a `kubealign` command: exit code, and stdout and stderr in one text."""

    code: int
    output: str


def run_command(*arguments: str, timeout: float) -> EndedCommand:
    """Run a `kubealign` command with the libraries already imported.

    Raises subprocess.TimeoutExpired; the command has then been killed."""
    with tempfile.TemporaryFile("w+") as output:
        process = PreloadedProcess([str(KUBEALIGN), *arguments], output)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(30)
            raise
        output.seek(0)
        return EndedCommand(code, output.read())


class RunningJobs:
    """The command without a terminal. A context manager that kills the command on exit."""

    def __init__(self, file: Path, runs: Path, *options: str) -> None:
        self.runs = runs
        self._command = [str(KUBEALIGN), "run", str(file), "--runs-dir", str(runs), *options]
        self._process: PreloadedProcess | None = None
        self._output = runs.parent / "output.txt"

    def __enter__(self) -> "RunningJobs":
        self.runs.mkdir(parents=True, exist_ok=True)
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(30)

    def start(self) -> None:
        """Run the command (again)."""
        with self._output.open("a") as output:
            self._process = PreloadedProcess(self._command, output)

    @property
    def is_running(self) -> bool:
        """True until the command has ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def output(self) -> str:
        """Output of the command so far."""
        return self._output.read_text()

    def end(self, timeout: float) -> int:
        """Wait for the command to end and return its exit code."""
        assert self._process is not None
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"the run had not ended after {timeout:g} s:\n{self.output[-4000:]}"
            ) from None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the command itself."""
        assert self._process is not None
        self._process.send_signal(number)

    def folder(self, job: str) -> Path:
        return self.runs / job

    def metrics(self, job: str) -> list[dict[str, Any]]:
        """Return every complete line of the job's metrics.jsonl so far."""
        return _metrics(self.folder(job))

    def steps(self, job: str) -> dict[int, dict[str, Any]]:
        """Return the last line of each trained step."""
        return trained_steps(self.folder(job))

    def history(self, job: str) -> list[dict[str, Any]]:
        """Return the history of a job: one line for each trained step."""
        return [json.loads(line.to_line()) for line in read_history(self.folder(job))]

    def wait_until(self, what: str, ready: Callable[[], bool], timeout: float) -> None:
        """Wait for a condition. Fails when the run ends first, or after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while not ready():
            assert self._process is not None
            if self._process.poll() is not None:
                raise AssertionError(
                    f"the run ended while the test waited for {what}:\n{self.output[-4000:]}"
                )
            if time.monotonic() > deadline:
                raise AssertionError(f"{what} had not come after {timeout:g} s:\n{self.output[-4000:]}")
            time.sleep(_POLL_SECONDS)

    def wait_for_step(self, job: str, step: int, timeout: float = 120.0) -> None:
        self.wait_until(f"step {step} of {job}", lambda: max(self.steps(job), default=0) >= step, timeout)

    def processes(self, job: str) -> dict[str, dict[str, Any]]:
        """Return the runner's state of each process by name; empty while the runner does not answer."""
        try:
            return {process["name"]: process for process in asyncio.run(list_processes(self.folder(job)))}
        except RunRefused:
            return {}

    def scale(self, job: str, replicas: int, group: str = "rollout") -> None:
        asyncio.run(scale(self.folder(job), replicas, group))

    def kill(self, job: str, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Kill one process, and wait until the runner has noticed."""
        before = self.processes(job)[name]
        os.kill(before["pid"], number)
        self.wait_until(
            f"the end of {name}", lambda: self.processes(job).get(name, before)["pid"] != before["pid"], 30
        )

    def pids(self, job: str) -> list[int]:
        """Return the process ids of the command and of everything that the run has started."""
        assert self._process is not None
        return [self._process.pid, *(p["pid"] for p in self.processes(job).values() if p["pid"])]


def alive(pids: Sequence[int]) -> list[int]:
    """Return the processes that still run; zombies do not count."""
    running = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            continue
        if state != "Z":
            running.append(pid)
    return running


def children(pid: int) -> list[int]:
    """Return the child processes of a running process."""
    return [child.pid for child in psutil.Process(pid).children()]


def trained_steps(run_dir: Path) -> dict[int, dict[str, Any]]:
    """Return the last line of each trained step in a run directory's metrics.jsonl."""
    return {line["step"]: line for line in _metrics(run_dir) if "seconds/step" in line}


def _metrics(run_dir: Path) -> list[dict[str, Any]]:
    """Return every complete line of metrics.jsonl."""
    path = run_dir / "metrics.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def left_running(folder: Path, seconds: float = 10.0) -> dict[int, str]:
    """Return processes that write to a log in this folder or name it in their command: process id -> command.

    Processes that end by themselves within `seconds`, because their parent has ended, do not count."""
    deadline = time.monotonic() + seconds
    while (processes := _running(folder)) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    return processes


def _running(folder: Path) -> dict[int, str]:
    commands = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            output = str((entry / "fd" / "1").readlink())
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if str(folder) in output or str(folder) in command:
            commands[int(entry.name)] = command
    return commands
