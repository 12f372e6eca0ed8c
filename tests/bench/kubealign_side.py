"""kubealign on a workload: `kubealign run` as a person starts it, every service a process of its own."""

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
    beside: Callable[[Path], Any] | None = None,
    env: Mapping[str, str] | None = None,
) -> tuple[list[dict[str, Any]], Usage]:
    """The lines of metrics.jsonl, one a step, and what the processes used. beside: a context manager around
    the run, which is given the run's folder.

    Raises RuntimeError with the end of the output when the job fails, or has not ended after `timeout`
    seconds."""
    run_folder.mkdir()
    document = run_folder / "job.yaml"
    document.write_text(yaml.safe_dump(job))
    folder = run_folder / "runs" / NAME
    kubealign = str(Path(sys.executable).with_name("kubealign"))
    command = [kubealign, "run", str(document), "--no-dashboard", "--runs-dir", str(folder.parent)]
    with (beside or _nothing)(folder):
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
    """Of a run's folder."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


class ProcessGroups:
    """Which process of the run a pid belongs to: asked of the runner, by the process's own name. Only where
    there is a new one: what the runner answers with is a core that the job lacks."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._names: dict[int, str] = {}
        self._asked_of: set[int] = set()

    def __call__(self, parents: dict[int, int]) -> dict[int, str]:
        if not parents.keys() <= self._asked_of and self._ask():
            self._asked_of |= parents.keys()
        return {pid: self._of(pid, parents) for pid in parents}

    def _ask(self) -> bool:
        """False: it does not answer yet."""
        try:
            found = asyncio.run(list_processes(self._run_dir))
        except RunRefused:
            return False
        self._names |= {process["pid"]: process["name"] for process in found if process["pid"]}
        return True

    def _of(self, pid: int, parents: dict[int, int]) -> str:
        """Its own name, or that of the process that started it."""
        while pid not in self._names:
            if pid not in parents:
                return RUNNER
            pid = parents[pid]
        return self._names[pid]


@contextmanager
def _nothing(_: Path) -> Iterator[None]:
    yield
