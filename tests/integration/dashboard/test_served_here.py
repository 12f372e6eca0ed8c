"""The dashboard of this machine as a process: opened at the printed address, ended by a signal, and started
by a run that survives it and that it does not outlive."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from support.running import RunningJobs, alive, left_running
from support.tiny_jobs import sft_job, write_jobs

pytestmark = pytest.mark.timeout(180, method="signal")

KUBEALIGN = Path(sys.executable).with_name("kubealign")
ADDRESS = re.compile(r"dashboard: (http://127\.0\.0\.1:\d+)/\?token=(\S+)")


@contextmanager
def dashboard(runs: Path) -> Iterator[tuple[str, str, "subprocess.Popen[str]"]]:
    """Return the address, the token and the process."""
    command = [KUBEALIGN, "dashboard", "--runs-dir", str(runs), "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        match = ADDRESS.match(line)
        assert match, line
        yield match[1], match[2], process
    finally:
        process.kill()
        process.communicate(timeout=30)


def test_the_printed_address_opens_the_dashboard(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    with dashboard(runs) as (address, token, process), httpx.Client(base_url=address, timeout=60) as client:
        assert client.get("/api/v1/session").status_code == 401
        assert client.get("/api/v1/session", headers={"X-Kubealign-Token": token + "x"}).status_code == 401
        assert client.get("/healthz", headers={"Host": "evil.example"}).status_code == 421
        opened = client.get("/", params={"token": token})
        assert opened.status_code == 303 and "token" not in opened.headers["location"]
        session = client.get("/api/v1/session").json()
        assert (session["site"], session["readOnly"]) == ("local", False)
        assert client.get("/api/v1/alignmentjobs").json()["items"] == []
        with client.stream("GET", "/api/v1/stream") as stream:
            assert "ready" in next(part for part in stream.iter_text() if "event" in part)
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0


def test_a_taken_port_is_reported(tmp_path: Path) -> None:
    with dashboard(tmp_path) as (address, _, _):
        port = address.rpartition(":")[2]
        command = [KUBEALIGN, "dashboard", "--runs-dir", str(tmp_path), "--no-browser", "--port", port]
        second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == 1
    assert f"127.0.0.1:{port}" in second.stderr


def test_the_dashboard_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run survives a kill of the dashboard; the dashboard ends with the run."""
    monkeypatch.setenv("KUBEALIGN_RUN_DASHBOARD", "on")
    file = write_jobs(tmp_path, sft_job(tmp_path, "tiny", maxSteps=100_000))
    with RunningJobs(file, tmp_path / "runs") as running:
        address, token = _address(running)
        with httpx.Client(base_url=address, headers={"X-Kubealign-Token": token}, timeout=60) as client:
            running.wait_for_step("tiny", 1)
            jobs = client.get("/api/v1/alignmentjobs").json()["items"]
            assert [job["metadata"]["name"] for job in jobs] == ["tiny"]
            steps = client.get("/api/v1/namespaces/default/alignmentjobs/tiny/metrics").json()["items"]
            assert steps[0]["step"] == 1
        os.kill(_child(running), signal.SIGKILL)
        running.wait_until(
            "word of the dashboard's end", lambda: "dashboard: exited with code" in running.output, 30
        )
        running.wait_for_step("tiny", max(running.steps("tiny")) + 1)
        pids = running.pids("tiny")
        running.send(signal.SIGINT)
        assert running.end(60) == 130
        running.start()
        running.wait_until("a new address", lambda: len(ADDRESS.findall(running.output)) == 2, 60)
        child = _child(running)
        running.send(signal.SIGKILL)
        running.end(30)
        running_left = left_running(tmp_path)
        assert not running_left and not alive([*pids, child])


def _address(running: RunningJobs) -> tuple[str, str]:
    running.wait_until("the dashboard's address", lambda: bool(ADDRESS.search(running.output)), 60)
    match = ADDRESS.search(running.output)
    assert match is not None
    return match[1], match[2]


def _child(running: RunningJobs) -> int:
    """Return the process id of the run's dashboard."""
    assert running._process is not None
    children = Path(f"/proc/{running._process.pid}/task/{running._process.pid}/children").read_text().split()
    for child in map(int, children):
        if b"local.child_process" in Path(f"/proc/{child}/cmdline").read_bytes():
            return child
    raise AssertionError(f"no dashboard beside the run:\n{running.output}")
