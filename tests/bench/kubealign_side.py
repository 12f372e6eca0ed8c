"""kubealign on the workload: `kubealign run` as a person starts it, every service a process of its own."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from tests.bench.watch import Usage, Watch
from tests.bench.workload import Workload

from kubealign.local.control import processes
from kubealign.local.failure import RunRefused

_NAME = "bench"
RUNNER = "runner and its fork server"


def measure(
    workload: Workload, folder: Path, steps: int, run_folder: Path, timeout: float
) -> tuple[list[dict[str, Any]], Usage]:
    """The lines of metrics.jsonl, one a step, and what the processes used.

    Raises RuntimeError with the end of the output when the job fails, or has not ended after `timeout`
    seconds."""
    run_folder.mkdir()
    job = run_folder / "job.yaml"
    job.write_text(yaml.safe_dump(workload.job(folder, _NAME, steps)))
    runs, output = run_folder / "runs", run_folder / "output.txt"
    command = [
        str(Path(sys.executable).with_name("kubealign")),
        "run",
        str(job),
        "--no-dashboard",
        "--runs-dir",
        str(runs),
    ]
    groups = ProcessGroups(runs / _NAME)
    with (
        output.open("w") as file,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file) as process,
    ):
        try:
            with Watch(process.pid, groups) as usage:
                code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"kubealign had not ended after {timeout:g} s:\n{_end(output)}") from None
        finally:
            process.kill()
    if code != 0:
        raise RuntimeError(f"kubealign ended with code {code}:\n{_end(output)}")
    lines = [json.loads(line) for line in (runs / _NAME / "metrics.jsonl").read_text().splitlines()]
    taken = [line for line in lines if "seconds/step" in line]
    for line in taken:
        tokens, length = line["batch/tokens"], line["response/length"]
        if (tokens, length) != (workload.tokens, workload.response_tokens):
            raise RuntimeError(
                f"step {line['step']} has {tokens} tokens, its responses {length} on average; "
                f"the workload says {workload.tokens} and {workload.response_tokens}"
            )
    return taken, usage


class ProcessGroups:
    """Which process of the run a pid belongs to: asked of the runner, by the process's own name."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._names: dict[int, str] = {}

    def __call__(self, parents: dict[int, int]) -> dict[int, str]:
        if not parents.keys() <= self._names.keys():
            self._ask()
        return {pid: self._of(pid, parents) for pid in parents}

    def _ask(self) -> None:
        try:
            found = asyncio.run(processes(self._run_dir))
        except RunRefused:
            return
        self._names |= {process["pid"]: process["name"] for process in found if process["pid"]}

    def _of(self, pid: int, parents: dict[int, int]) -> str:
        """Its own name, or that of the process that started it."""
        while pid not in self._names:
            if pid not in parents:
                return RUNNER
            pid = parents[pid]
        return self._names[pid]


def _end(output: Path) -> str:
    return output.read_text()[-4000:]
