"""Real role processes: start, stop, exit codes and logs."""

import asyncio
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kubealign.access.certificate_authority import CertificateAuthority, write_tls
from kubealign.process_settings import ExitCode, NatsAccess, ProcessSettings, RedisAccess, Role
from kubealign.v1 import training_pb2
from kubealign.v1.trainer_pb2_grpc import TrainerStub
from kubealign_services.runtime.process.role_runner import CRASHED
from kubealign_services.runtime.rpc.client import Peer

# By signal: the thread method would leave the servers running.
pytestmark = pytest.mark.timeout(90, method="signal")

JOB = {
    "apiVersion": "kubealign.dev/v1alpha1",
    "kind": "AlignmentJob",
    "metadata": {"name": "sums"},
    "spec": {
        "maxSteps": 1,
        "policy": {"model": {"path": "/policy"}},
        "algorithm": {"sft": {}},
        "data": {"demonstrations": {"source": {"path": "/data.jsonl"}}},
    },
}


class Host:
    """The process that forks the role processes."""

    def __init__(self) -> None:
        program = Path(__file__).with_name("process_host.py")
        self._process = subprocess.Popen(
            [sys.executable, str(program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # gRPC's core also writes lines to the log.
            env={**os.environ, "OMP_NUM_THREADS": "1", "GRPC_VERBOSITY": "NONE"},
        )

    def ask(self, *words: object) -> int:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=20)


class RoleProcess:
    """One role process of a test."""

    def __init__(self, host: Host, folder: Path) -> None:
        self._host = host
        self._folder = folder
        self._log = folder / "process.log"
        self._pid = 0
        self.settings: ProcessSettings

    def start(self, scenario: str, grace: float = 30.0, **changes: Any) -> None:
        tls = write_tls(
            self._folder / "tls", CertificateAuthority.create("sums", timedelta(hours=1)), Role.TRAINER
        )
        job = json.loads(json.dumps(JOB))
        job["spec"]["lifecycle"] = {"gracePeriodSeconds": grace}
        (self._folder / "job.json").write_text(json.dumps(job))
        given: dict[str, Any] = {
            "name": "trainer-0",
            "role": Role.TRAINER,
            "job": self._folder / "job.json",
            "run_dir": self._folder,
            "shared_memory": self._folder,
            "tls": tls,
            "nats": NatsAccess(url="tls://127.0.0.1:1", user="job", password="x"),
            # A port without a listener: only telemetry is lost.
            "redis": RedisAccess(host="127.0.0.1", port=1, user="job", password="x", prefix="p:"),
            "threads": 1,
            "termination": self._folder / "termination",
            **changes,
        }
        self.settings = ProcessSettings(**given)
        path = self._folder / "settings.json"
        path.write_text(self.settings.model_dump_json())
        self._pid = self._host.ask("start", scenario, path, self._log)

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._log.read_text().splitlines()]

    def event(self, message: str) -> dict[str, Any]:
        """Wait for the event with this message and return it."""
        for _ in range(1500):
            # The last line may be half written.
            text = self._log.read_text()
            for line in text[: text.rfind("\n") + 1].splitlines():
                event: dict[str, Any] = json.loads(line)
                if message in event["message"]:
                    return event
            time.sleep(0.02)
        raise AssertionError(f"no event {message!r} in {self._log.read_text()}")

    def signal(self, number: signal.Signals) -> None:
        os.kill(self._pid, number)

    def wait(self) -> int:
        pid, self._pid = self._pid, 0
        return self._host.ask("wait", pid)

    def close(self) -> None:
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            self.wait()


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    running = Host()
    try:
        yield running
    finally:
        running.close()


@pytest.fixture
def process(host: Host, tmp_path: Path) -> Iterator[RoleProcess]:
    role_process = RoleProcess(host, tmp_path)
    try:
        yield role_process
    finally:
        role_process.close()


def test_finished_work(process: RoleProcess) -> None:
    process.start("ends")
    assert process.wait() == ExitCode.DONE
    started, *_ = process.events()
    names = (started["job"], started["role"], started["process"], started["message"])
    assert names == ("sums", "trainer", "trainer-0", "started")
    assert process.event("computed")["sum"] == 6
    assert process.event("ended")["code"] == 0
    assert not process.settings.termination.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_graceful_stop(process: RoleProcess, number: signal.Signals) -> None:
    process.start("waits")
    process.event("waiting")
    process.signal(number)
    assert process.wait() == ExitCode.STOPPED
    assert process.event("stopping on")["message"] == f"stopping on {number.name}"
    assert process.event("ended")["code"] == 143


def test_replaced_process_reports_no_failure(process: RoleProcess) -> None:
    process.start("is_replaced")
    assert process.wait() == ExitCode.REPLACED
    event = process.event("replaced: fence 1 has been replaced by 2")
    assert event["level"] == "warning" and "exception" not in event
    assert not process.settings.termination.exists()


def test_permanent_failure_writes_the_termination_message(process: RoleProcess) -> None:
    process.start("fails_for_good")
    assert process.wait() == ExitCode.PERMANENT
    assert process.settings.termination.read_text() == "the data has no column answer"
    event = process.event("the data has no column answer")
    assert event["level"] == "error" and "exception" not in event


def test_crash_logs_its_traceback(process: RoleProcess) -> None:
    process.start("crashes")
    assert process.wait() == CRASHED
    event = process.event("crashed")
    assert "KeyError: 'advantages'" in event["exception"]
    assert not process.settings.termination.exists()


def test_crash_does_not_wait_for_a_computation(process: RoleProcess) -> None:
    process.start("crashes_while_computing", grace=3600)
    assert process.wait() == CRASHED
    assert process.event("exited during a computation")["computation"] == "sleep"


@pytest.mark.parametrize(
    ("scenario", "waited_for"),
    [
        ("ignores_the_stop", "_run_main > ignores_the_stop > _for_ever > Event.wait"),
        ("computes_on", "the computation sleep"),
        ("stands_still", ""),
    ],
)
def test_grace_period_ends_the_process(process: RoleProcess, scenario: str, waited_for: str) -> None:
    process.start(scenario, grace=0.5)
    process.event("waiting")
    process.signal(signal.SIGTERM)
    assert process.wait() == CRASHED
    event = process.event("did not end within the grace period")
    assert event["grace_seconds"] == 0.5
    assert waited_for in event["waited_for"]


def test_a_second_signal_ends_at_once(process: RoleProcess) -> None:
    process.start("ignores_the_stop", grace=3600)
    process.event("waiting")
    process.signal(signal.SIGTERM)
    process.event("stopping on")
    process.signal(signal.SIGINT)
    assert process.wait() == ExitCode.STOPPED


async def test_serving_process_reports_ready(process: RoleProcess, unused_tcp_port: int) -> None:
    address = f"127.0.0.1:{unused_tcp_port}"
    process.start("serves", listen=address)
    driver = write_tls(
        process.settings.tls.ca.parent / "d",
        CertificateAuthority.create("sums", timedelta(hours=1)),
        Role.DRIVER,
    )
    async with Peer("trainer", address, driver, TrainerStub) as peer:
        with pytest.raises(ConnectionError):
            await peer.wait_until_ready(1.0)
    async with Peer("trainer", address, process.settings.tls, TrainerStub) as peer:
        await peer.wait_until_ready(20.0)
        with pytest.raises(PermissionError, match="the role trainer may not call"):
            await peer.call("Describe", training_pb2.DescribeRequest(), timeout=10.0)
    process.signal(signal.SIGTERM)
    assert await asyncio.to_thread(process.wait) == ExitCode.STOPPED


def test_process_is_live_but_not_ready_before_it_serves(process: RoleProcess, unused_tcp_port: int) -> None:
    process.start("waits", health=f"127.0.0.1:{unused_tcp_port}")
    process.event("waiting")
    assert (probe(unused_tcp_port, "/livez"), probe(unused_tcp_port, "/readyz")) == (200, 503)


def test_process_is_ready_when_it_serves(process: RoleProcess, unused_tcp_port: int) -> None:
    process.start("serves", listen="127.0.0.1:0", health=f"127.0.0.1:{unused_tcp_port}")
    process.event("waiting")
    assert (probe(unused_tcp_port, "/livez"), probe(unused_tcp_port, "/readyz")) == (200, 200)


def test_blocked_event_loop_is_not_live(process: RoleProcess, unused_tcp_port: int) -> None:
    process.start("stands_still", health=f"127.0.0.1:{unused_tcp_port}")
    process.event("waiting")
    with pytest.raises(TimeoutError):
        probe(unused_tcp_port, "/livez", timeout=0.5)


def probe(port: int, path: str, timeout: float = 20.0) -> int:
    """Return the status that a kubelet would receive."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("field", ["listen", "metrics", "health"])
def test_a_port_in_use(process: RoleProcess, field: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        listening: dict[str, Any] = {"listen": "127.0.0.1:0", field: address}
        process.start("serves", **listening)
        assert process.wait() == CRASHED
    event = process.event(address)
    assert "end the process that has it, or choose another port" in event["message"]
    assert "exception" not in event


def test_unreadable_settings(host: Host, tmp_path: Path) -> None:
    log = tmp_path / "log"
    (tmp_path / "settings.json").write_text('{"name": "trainer-0", "role": "teacher"}')
    for settings, message in (("settings.json", "role"), ("missing.json", "No such file")):
        assert host.ask("wait", host.ask("start", "ends", tmp_path / settings, log)) == ExitCode.PERMANENT
        assert message in log.read_text()
