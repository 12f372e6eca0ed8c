"""Full life of a real local job, by commands."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kubealign.cli.main import app
from support.running import KUBEALIGN, left_running
from support.tiny_jobs import PACED_LETTER_A, online_job, set_pace, write_jobs, write_reward

STEPS = 15


class Shell:
    """Runs commands on the runs of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [str(KUBEALIGN), *arguments, "--runs-dir", str(self.folder / "runs")]
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
        )

    def run(self, *arguments: str, code: int = 0) -> str:
        """Return the output of a command without a process of its own, which must exit with this code."""
        done = CliRunner().invoke(app, [*arguments, "--runs-dir", str(self.folder / "runs")])
        assert done.exit_code == code, f"{arguments}: {done.output}"
        return done.output if code else done.stdout


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    yield shell
    if (tmp_path / "runs" / "tiny").exists():
        shell.run("delete", "tiny", "--yes")


def write_job(folder: Path) -> Path:
    """Write a job whose steps are paced by a file."""
    pace = set_pace(folder, 2.0)
    reward = write_reward(folder, PACED_LETTER_A.format(file=str(pace)), "paced")
    algorithm = {"grpo": {"promptsPerStep": 2, "samplesPerPrompt": 2}}
    return write_jobs(folder, online_job(folder, "tiny", algorithm, maxSteps=STEPS, rewards=[reward]))


def test_life_of_a_job(shell: Shell) -> None:
    file = write_job(shell.folder)
    assert shell.run("submit", str(file)) == "tiny: submitted\n"
    following = shell.start("logs", "tiny", "-f", "--role", "driver")
    try:
        _lives(shell)
        out, err = following.communicate(timeout=60)
    finally:
        following.kill()
        following.wait()
    assert following.returncode == 0, err
    # The follower started before the driver, and continued across suspend and resume.
    assert out.count('"message":"started"') == 2
    assert f'"step":{STEPS}' in out
    assert shell.run("delete", "tiny") == "tiny: deleted\n"
    assert "there is no job tiny" in shell.run("get", "tiny", code=1)
    assert left_running(shell.folder) == {}


def _lives(shell: Shell) -> None:
    assert "tiny: Running" in shell.run("wait", "tiny", "--for", "Running", "--timeout", "120s")
    assert "spec.rollout.replicas" in shell.run("scale", "tiny", "0", code=3)
    head, row = shell.run("list", "-o", "wide").splitlines()
    assert row.split()[:2] == ["tiny", "Running"] and "ROLLOUT" in head
    # Two steps are shown as they complete.
    top = shell.start("top", "tiny", "--every", "0.2")
    try:
        assert top.stdout is not None
        seen = [top.stdout.readline() for _ in range(3)]
    finally:
        top.kill()
        _, complaint = top.communicate()
    assert all(line.startswith("tiny: ") for line in seen), (seen, complaint)
    assert "reward" in seen[-1] and "gen" in seen[-1]
    once = shell.run("top", "tiny", "--once")
    for text in ("throughput", "queue", "staleness 0", "rollout-0", "driver"):
        assert text in once
    shell.run("suspend", "tiny")
    shell.run("wait", "tiny", "--for", "Suspended", "--timeout", "120s")
    shell.run("resume", "tiny")
    set_pace(shell.folder, 0.0)
    assert "tiny: Succeeded" in shell.run("wait", "tiny", "--timeout", "120s")
    _ended(shell)


def _ended(shell: Shell) -> None:
    (sample,) = json.loads(shell.run("samples", "tiny", "--count", "1", "-o", "json"))
    assert sample["step"] == STEPS and sample["weightVersion"] == STEPS - 1
    assert shell.run("samples", "tiny", "--step", "1").count("step 1 ") > 0
    rows = shell.run("metrics", "tiny", "-f", "reward/mean", "-o", "csv", "--last", "0").splitlines()
    assert [row.split(",")[0] for row in rows] == ["step", *map(str, range(1, STEPS + 1))]
    result = shell.run("result", "tiny").strip()
    assert result == str(shell.folder / "runs" / "tiny" / "result")
    copy = shell.folder / "aligned"
    assert shell.run("result", "tiny", "--into", str(copy)) == f"{copy}\n"
    files = {path.name: path.read_bytes() for path in copy.iterdir()}
    assert files == {path.name: path.read_bytes() for path in Path(result).iterdir()} and files
    assert f"--into is {copy}, which exists" in shell.run("result", "tiny", "--into", str(copy), code=1)
    described = shell.run("describe", "tiny")
    for text in (
        "Succeeded",
        f"{STEPS}/{STEPS}",
        "grpo",
        "Events",
        str(shell.folder / "runs" / "tiny" / "result"),
    ):
        assert text in described
    document = json.loads(shell.run("get", "tiny", "-o", "json"))
    assert document["status"]["phase"] == "Succeeded"
    reasons = [event["reason"] for event in json.loads(shell.run("events", "tiny", "-o", "json"))]
    assert reasons[0] == "Submitted" and reasons[-1] == "Succeeded"
