"""A job of small real processes, run by the real runner with real servers."""

import asyncio
import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kubealign.local.processes.fork_server import ForkServer
from kubealign.local.processes.supervisor import UnitState
from kubealign.local.run_dir.layout import RunDirectory
from kubealign.local.run_dir.status import RunStatus
from kubealign.local.runner.job_runner import JobRunner, RunOptions
from kubealign.local.runner.signals import Interruption
from kubealign.process_settings import Role
from kubealign.roles import Process
from kubealign.spec.job import AlignmentJob

HERE = Path(__file__).parent
MODULE = "local_fake_role"

JOB = """
apiVersion: kubealign.dev/v1alpha1
kind: AlignmentJob
metadata: {name: tiny}
spec:
  maxSteps: 90
  algorithm: {sft: {}}
  policy: {model: {path: /nowhere}}
  data: {demonstrations: {source: {path: /nowhere.jsonl}, format: {text: {}}}}
  lifecycle: {gracePeriodSeconds: 5, maxRestarts: 3}
"""


@dataclass
class Told:
    """A display that records its messages."""

    said: list[str] = field(default_factory=list)
    heard: Callable[[str], None] = lambda text: None

    def begin(self, job, folder) -> None:
        pass

    def show_message(self, text: str) -> None:
        self.said.append(text)
        self.heard(text)

    async def follow(self, reader, processes, over) -> None:
        await over.wait()

    def end(self, status) -> None:
        pass


class Begun:
    """A run in progress with its stop signals."""

    def __init__(self, run: JobRunner) -> None:
        self.run = run
        self.interruption = Interruption()
        self.task = asyncio.ensure_future(run.run(self.interruption))

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                assert not self.task.done(), f"it ended early: {self.task.result()}"
                await asyncio.sleep(0.02)

    async def all_ready(self) -> None:
        def done() -> bool:
            states = {view.state for view in self.run.processes()}
            return bool(states) and states <= {UnitState.READY, UnitState.FINISHED}

        await self.until(done)

    def state(self, name: str) -> UnitState:
        states = {view.name: view.state for view in self.run.processes()}
        return states.get(name, UnitState.WAITING)

    def pid(self, name: str) -> int:
        pid = next(view.pid for view in self.run.processes() if view.name == name)
        assert pid is not None, f"{name} does not run"
        return pid

    async def finish(self) -> RunStatus:
        """Let the driver finish its work."""
        os.kill(self.pid("driver"), signal.SIGUSR1)
        return await self.task


@dataclass
class Place:
    """Run directory of a test's job."""

    path: Path
    fork_server: ForkServer
    told: Told = field(default_factory=Told)
    job: AlignmentJob = field(default_factory=lambda: AlignmentJob.from_yaml(JOB))

    begun: list["Begun"] = field(default_factory=list)

    @property
    def folder(self) -> RunDirectory:
        return RunDirectory(self.path / "tiny")

    def behave(self, **behaviour: dict) -> None:
        (self.path / "behaviour.json").write_text(
            json.dumps({k.replace("_", "-"): v for k, v in behaviour.items()})
        )

    def lifecycle(self, **fields: object) -> None:
        lifecycle = self.job.spec.lifecycle.model_copy(update=fields)
        self.job = self.job.model_copy(
            update={"spec": self.job.spec.model_copy(update={"lifecycle": lifecycle})}
        )

    def run(self, processes: list[Process], **options) -> JobRunner:
        chosen = RunOptions(processes=processes, **options)
        return JobRunner(self.job, self.folder, self.fork_server, self.told, chosen)

    async def begin(self, processes: list[Process], **options) -> "Begun":
        begun = Begun(self.run(processes, **options))
        self.begun.append(begun)
        return begun

    async def end(self) -> None:
        """Kill the processes that a failed test has left."""
        for begun in self.begun:
            if not begun.task.done():
                begun.interruption.request_stop()
                begun.interruption.request_stop()
                await begun.task

    def events(self) -> list[dict]:
        path = self.path / "events.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def sequence(self, event: str) -> list[str]:
        return [e["name"] for e in self.events() if e["event"] == event]

    def pids(self) -> set[int]:
        return {e["pid"] for e in self.events()}


def command_name(pid: int) -> str:
    """Return the name that ps shows for a process; empty when it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except FileNotFoundError:
        return ""


def mode(path: Path) -> int:
    """Return the permission bits of a path."""
    return path.stat().st_mode & 0o777


def shared_memory(run_dir: Path) -> Path:
    """Return the shared memory folder of the run."""
    return Path((run_dir / "shared-memory").read_text())


def is_there(path: Path) -> bool:
    return path.exists()


def descendants(root: int) -> set[int]:
    """Return the process ids of all descendants."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
    result = {root}
    while new := {pid for pid, parent in parents.items() if parent in result} - result:
        result |= new
    return result - {root}


async def eventually(condition: Callable[[], bool]) -> None:
    """Poll for a condition for up to a minute: processes give no events here."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def prepare() -> Process:
    return Process("prepare", Role.DRIVER, "prepare", MODULE, one_shot=True, serves=False)


def trainer(rank: int = 0, world_size: int = 1) -> Process:
    return Process(
        f"trainer-{rank}",
        Role.TRAINER,
        "trainer",
        MODULE,
        rank=rank,
        world_size=world_size,
        after=("prepare",),
        serves=rank == 0,
    )


def rollout(number: int = 0) -> Process:
    return Process(
        f"rollout-{number}",
        Role.ROLLOUT,
        "rollout",
        MODULE,
        after=("prepare",),
        elastic=True,
        calls=("trainer",),
    )


def driver(*after: str) -> Process:
    return Process("driver", Role.DRIVER, "driver", MODULE, after=("prepare", *after), calls=("trainer",))
