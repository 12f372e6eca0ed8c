"""Runs a workload with `kubealign run`, every service in its own process."""

import asyncio
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from tests.bench.machine import job_environment
from tests.bench.process import run
from tests.bench.watch import Usage

from kubealign.local.errors import RunRefused
from kubealign.local.run_dir.control_socket import list_processes

NAME = "bench"
RUNNER = "runner and its fork server"


def measure(
    job: dict[str, Any],
    run_folder: Path,
    timeout: float,
    around_run: Callable[[Path], Any] | None = None,
    env: Mapping[str, str] | None = None,
) -> tuple[list[dict[str, Any]], Usage]:
    """Run the job. Return the lines of metrics.jsonl, one per step, and the resource usage of the processes.

    around_run: context manager around the run, called with the run directory. Raises RuntimeError with the
    end of the output when the job fails, or has not ended after `timeout` seconds."""
    run_folder.mkdir()
    document = run_folder / "job.yaml"
    document.write_text(yaml.safe_dump(job))
    folder = run_folder / "runs" / NAME
    kubealign = str(Path(sys.executable).with_name("kubealign"))
    command = [kubealign, "run", str(document), "--no-dashboard", "--runs-dir", str(folder.parent)]
    with (around_run or _nothing)(folder):
        usage = run(
            command,
            run_folder / "output.txt",
            env or job_environment(),
            timeout,
            "kubealign",
            ProcessGroups(folder),
        )
    return [line for line in metrics(folder) if "seconds/step" in line], usage


def metrics(folder: Path) -> list[dict[str, Any]]:
    """Read metrics.jsonl of a run directory."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


class ProcessGroups:
    """Maps the pids of a run to process names. The runner is asked only when there is a new pid, because
    answering takes a core from the job."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._names: dict[int, str] = {}
        self._asked_of: set[int] = set()

    def __call__(self, parents: dict[int, int]) -> dict[int, str]:
        if not parents.keys() <= self._asked_of and self._ask():
            self._asked_of |= parents.keys()
        return {pid: self._of(pid, parents) for pid in parents}

    def _ask(self) -> bool:
        """Ask the runner for its processes. Return False if it does not answer yet."""
        try:
            processes = asyncio.run(list_processes(self._run_dir))
        except RunRefused:
            return False
        self._names |= {process["pid"]: process["name"] for process in processes if process["pid"]}
        return True

    def _of(self, pid: int, parents: dict[int, int]) -> str:
        """Return the name of a process, or of the nearest ancestor with a name."""
        while pid not in self._names:
            if pid not in parents:
                return RUNNER
            pid = parents[pid]
        return self._names[pid]


@contextmanager
def _nothing(_: Path) -> Iterator[None]:
    yield
