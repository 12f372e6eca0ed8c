"""The runner as a separate process, observed by caller, terminal and kernel."""

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from local_job import HERE, JOB, alive, descendants, eventually, is_there, shared_memory

from kubealign.local.errors import RunRefused
from kubealign.local.run_dir.control_socket import list_processes

pytestmark = pytest.mark.timeout(90)


class Command:
    """`kubealign run` in the test's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.output = folder / "output"
        self.started: list[subprocess.Popen[bytes]] = []
        self.behave()
        (folder / "jobs.yaml").write_text(JOB)

    def behave(self, **behaviour: dict) -> None:
        (self.folder / "behaviour.json").write_text(json.dumps(behaviour))

    def start(self, *options: str, stdin: int = subprocess.DEVNULL, output: int | None = None):
        command = [
            sys.executable,
            str(HERE / "run_tiny.py"),
            str(self.folder / "jobs.yaml"),
            str(self.folder),
        ]
        with self.output.open("wb") as file:
            target = file if output is None else output
            process = subprocess.Popen(
                [*command, *options], stdin=stdin, stdout=target, stderr=target, start_new_session=True
            )
        self.started.append(process)
        return process

    def run(self, *options: str) -> tuple[int, str]:
        process = self.start(*options)
        code = process.wait(60)
        return code, self.output.read_text()

    async def all_ready(self, runner: subprocess.Popen[bytes]) -> dict[str, int]:
        """Return the process ids by name once all are ready."""
        async with asyncio.timeout(60):
            while True:
                assert runner.poll() is None, self.output.read_text()
                try:
                    views = await list_processes(self.folder / "tiny")
                except RunRefused:
                    views = []
                if views and all(view["state"] in ("Ready", "Finished") for view in views):
                    return {view["name"]: view["pid"] for view in views if view["pid"]}
                await asyncio.sleep(0.02)

    def events(self, event: str) -> list[str]:
        lines = (self.folder / "events.jsonl").read_text().splitlines()
        return [entry["name"] for entry in map(json.loads, lines) if entry["event"] == event]


@pytest.fixture
async def command(tmp_path: Path) -> AsyncIterator[Command]:
    command = Command(tmp_path)
    yield command
    for process in command.started:
        if process.poll() is None:
            process.kill()
        process.wait(20)


async def test_no_process_outlives_a_killed_runner(command: Command) -> None:
    runner = command.start()
    known = await command.all_ready(runner)
    everything = descendants(runner.pid)
    # Two more: the fork server and multiprocessing's resource tracker.
    assert set(known.values()) < everything and len(everything) >= len(known) + 1
    runner.send_signal(signal.SIGKILL)
    await eventually(lambda: not any(alive(pid) for pid in everything))
    memory = shared_memory(command.folder / "tiny")
    assert is_there(memory)

    # The same command resumes the run and cleans up after the killed runner.
    runner = command.start()
    known = await command.all_ready(runner)
    assert not is_there(memory)
    os.kill(known["driver"], signal.SIGUSR1)
    assert await asyncio.to_thread(runner.wait, 60) == 0


async def test_ctrl_c_reaches_only_the_runner(command: Command) -> None:
    command.behave(driver={"redis": [{"step": 7, "metrics": {"reward/mean": 0.25, "seconds/step": 2.0}}]})
    master, slave = pty.openpty()
    runner = command.start("--terminal", stdin=slave, output=slave)
    os.close(slave)
    shown = bytearray()
    asyncio.get_running_loop().add_reader(master, lambda: shown.extend(_read(master)))
    await command.all_ready(runner)
    # The live panel shows the job, its step and the remaining time: (90 - 7) steps of 2 s are 166 s.
    await eventually(lambda: b"step 7/90" in shown and b"2m46s left" in shown and b"46" in shown)
    os.write(master, b"\x03")
    code = await asyncio.to_thread(runner.wait, 60)
    await eventually(lambda: b"resumes" in shown)
    asyncio.get_running_loop().remove_reader(master)
    os.close(master)
    assert code == 130
    assert b"stopped at step 7; the same command resumes from there" in shown.replace(b"\r\n", b" ")
    # With a Ctrl-C the other processes would not have waited for the driver.
    assert command.events("term")[0] == "driver"
    assert command.events("exit")[0] == "driver"


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65_536)
    except OSError:
        return b""


async def test_lines_without_a_terminal(command: Command) -> None:
    metrics = {
        "reward/mean": 0.4125,
        "kl/reference": 0.031,
        "response/length": 7.25,
        "tokens_per_second": 812.4,
        "seconds/generate": 0.6,
        "seconds/train": 0.304,
        "val/exact": 0.65,
    }
    command.behave(
        driver={"redis": [{"step": 11, "metrics": {"sft/loss": 2.5}}, {"step": 12, "metrics": metrics}]}
    )
    runner = command.start()
    known = await command.all_ready(runner)
    os.kill(known["driver"], signal.SIGUSR1)
    assert await asyncio.to_thread(runner.wait, 60) == 0
    lines = command.output.read_text().splitlines()
    assert "tiny: step 11/90 loss 2.500" in lines
    assert (
        "tiny: step 12/90 reward 0.412 kl 0.031 len 7.2 tok/s 812 gen 0.60s train 0.30s val/exact 0.650"
        in lines
    )
    assert lines[-1].startswith("tiny: succeeded after ")
    assert f"result: {command.folder / 'tiny' / 'result'}" in lines[-1]
    status = json.loads((command.folder / "tiny" / "status.json").read_text())
    assert status["step"] == 12 and status["metrics"] == metrics


async def test_closed_output_does_not_stop_the_job(command: Command) -> None:
    reader, writer = os.pipe()
    runner = command.start(output=writer)
    os.close(writer)
    known = await command.all_ready(runner)
    os.close(reader)
    # The message about the restart goes to the broken pipe.
    os.kill(known["rollout-0"], signal.SIGKILL)
    await eventually(lambda: command.events("start").count("rollout-0") == 2)
    await command.all_ready(runner)
    os.kill(known["driver"], signal.SIGUSR1)
    assert await asyncio.to_thread(runner.wait, 60) == 0


async def test_a_finished_job_is_skipped_and_another_of_its_name_refused(command: Command) -> None:
    command.behave(driver={"codes": [0, 0]})
    assert command.run()[0] == 0
    code, output = command.run()
    assert code == 0
    assert output == f"tiny: finished before, result at {command.folder / 'tiny' / 'result'}\n"
    assert command.events("start").count("driver") == 1

    code, output = command.run("--set", "spec.seed=2", "--set", "spec.trainer.ranks=2")
    assert code == 1
    assert "it differs in spec.seed (1, now 2); spec.trainer.ranks (1, now 2)" in output
    assert "--fresh" in output

    # Changed lifecycle settings leave a finished job finished; more steps do not.
    code, output = command.run("--set", "spec.lifecycle.maxRestarts=9")
    assert "finished before" in output
    code, output = command.run("--set", "spec.maxSteps=100")
    assert code == 0 and "succeeded" in output
    assert command.events("start").count("driver") == 2


async def test_fresh_deletes_the_run(command: Command) -> None:
    command.behave(driver={"codes": [0, 0]})
    assert command.run()[0] == 0
    (command.folder / "tiny" / "commits" / "old").mkdir()
    code, _ = command.run("--fresh", "--set", "spec.seed=2")
    assert code == 0
    assert not (command.folder / "tiny" / "commits" / "old").exists()
    assert json.loads((command.folder / "tiny" / "job.json").read_text())["spec"]["seed"] == 2


async def test_a_failed_job_is_the_commands_failure(command: Command) -> None:
    command.behave(prepare={"codes": [78], "why": "data.jsonl has no column 'prompt'"})
    code, output = command.run()
    assert code == 1
    assert "prepare: data.jsonl has no column 'prompt'" in output


async def test_two_runners_cannot_share_a_folder(command: Command) -> None:
    runner = command.start()
    await command.all_ready(runner)
    code, output = command.run()
    assert code == 1
    assert f"in use by another kubealign run (process {runner.pid})" in output
    assert runner.poll() is None
    runner.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(runner.wait, 60) == 130
