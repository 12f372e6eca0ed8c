"""Listening ports of a running job, and what docs/security.md says that they give a stranger."""

import ipaddress
import json
import re
import socket
import ssl
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from torch.distributed import TCPStore

from support.doc_blocks import ROOT
from support.running import RunningJobs
from support.tiny_jobs import online_job, write_jobs

pytestmark = pytest.mark.timeout(180, method="signal")

_SECTION = "## Ports of a job on one machine\n"
_HOST = "127.0.0.1"
_ANSWER_SECONDS = 10.0
_SILENCE_SECONDS = 0.3
_COMMAND_SECONDS = 60.0
_PUBLIC_PATHS = ("/", "/healthz", "/readyz", "/metrics", "/static/js/main.js")
_PRIVATE_PATHS = ("/api/v1/session", "/api/v1/alignmentjobs", "/api/v1/stream", "/api/v1/openapi.json", "/x")


@dataclass(frozen=True)
class ListeningPort:
    """A listening TCP port: the process and the purpose as in the table."""

    process: str
    purpose: str
    address: str
    number: int


def _documented_ports() -> set[tuple[str, str]]:
    """Return process and purpose of each row of the table."""
    section = (ROOT / "docs/security.md").read_text().partition(_SECTION)[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| [^|]+ \|$", section, re.MULTILINE)
    return {(process.strip("`"), purpose) for process, purpose in rows[1:]} - {("---", "---")}


def _listening_ports(run: RunningJobs, job: str) -> list[ListeningPort]:
    names = {process["pid"]: name for name, process in run.processes(job).items()}
    ports = []
    # The run's process is the first; the processes of the job are its descendants.
    parent = psutil.Process(run.pids(job)[0])
    for process in [parent, *parent.children(recursive=True)]:
        name = names.get(process.pid) or _name_of_helper(process)
        for connection in process.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN:
                process_name, purpose = _classify(run.folder(job), name, connection.laddr.port)
                ports.append(ListeningPort(process_name, purpose, connection.laddr.ip, connection.laddr.port))
    return ports


def _name_of_helper(process: psutil.Process) -> str:
    command = " ".join(process.cmdline())
    return "dashboard" if "kubealign_dashboard" in command else f"unknown process: {command}"


def _classify(folder: Path, name: str, port: int) -> tuple[str, str]:
    """Return process and purpose as in the table."""
    servers = {"nats": "bus", "redis": "read model", "dashboard": "page and API"}
    if name in servers:
        return name, servers[name]
    path = folder / "settings" / f"{name}.json"
    if not path.exists():
        return name, "unknown"
    settings: Any = json.loads(path.read_text())
    is_port_of = {
        key: f"{settings[key] or ''}".endswith(f":{port}") for key in ("listen", "metrics", "rendezvous")
    }
    if is_port_of["listen"]:
        return "each role", "calls"
    if is_port_of["metrics"]:
        return "each role", "metrics page"
    if settings["world_size"] == 1:
        return name, "unknown"
    if is_port_of["rendezvous"] and settings["rank"] == 0:
        return "rank 0 of several", "store of the ranks"
    return "each rank of several", "collectives (gloo)"


def _received(port: int, request: bytes, seconds: float = _ANSWER_SECONDS) -> bytes:
    """Return the first bytes that come back; empty when the connection ends or nothing comes."""
    with socket.create_connection((_HOST, port), timeout=seconds) as client:
        try:
            client.sendall(request)
            return client.recv(65536)
        except (TimeoutError, ConnectionError):
            return b""


def _check_mutual_tls(port: int, greeting: bool = False) -> None:
    """Check that no byte comes through TLS without a certificate, and that nothing but TLS is spoken."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2", "http/1.1"])
    with socket.create_connection((_HOST, port), timeout=_ANSWER_SECONDS) as client:
        if greeting:
            client.recv(65536)
        # In TLS 1.3 the handshake succeeds for the client, and the first read fails.
        with pytest.raises((ssl.SSLError, ConnectionError)), context.wrap_socket(client) as session:
            session.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            if not session.recv(65536):
                raise ConnectionError("closed without a byte")
    if not greeting:
        assert b"HTTP/1" not in _received(port, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", _SILENCE_SECONDS)


def _check_nats(port: int) -> None:
    greeting = _received(port, b"")
    assert greeting.startswith(b"INFO ")
    info = json.loads(greeting[5:])
    assert (info["tls_required"], info["tls_verify"], info["auth_required"]) == (True, True, True)
    _check_mutual_tls(port, greeting=True)
    # Without TLS the server ends the connection, and no subscription is accepted.
    with socket.create_connection((_HOST, port), timeout=_ANSWER_SECONDS) as client:
        client.recv(65536)
        client.sendall(b'CONNECT {"verbose":true}\r\nSUB > 1\r\nPING\r\n')
        answer = b""
        try:
            while part := client.recv(65536):
                answer += part
        except ConnectionError:
            pass
        assert not answer.startswith(b"+OK") and b"PONG" not in answer and b"MSG" not in answer


def _check_redis(port: int) -> None:
    for command in (b"PING", b"INFO", b"KEYS *", b"ACL WHOAMI", b"CONFIG GET *", b"HELLO 3", b"COMMAND"):
        assert _received(port, command + b"\r\n").startswith(b"-NOAUTH"), command


def _check_dashboard(port: int) -> None:
    with httpx.Client(base_url=f"http://{_HOST}:{port}", timeout=_ANSWER_SECONDS, trust_env=False) as client:
        for path in _PUBLIC_PATHS:
            answer = client.get(path)
            assert answer.status_code == 200, path
            assert "tiny" not in answer.text, path
        for path in _PRIVATE_PATHS:
            for method in ("GET", "POST", "DELETE"):
                assert client.request(method, path).status_code == 401, (method, path)


def _check_store(port: int) -> None:
    """Check what the table admits: keys can be read and written; and that commands are sealed."""
    store = TCPStore(_HOST, port, None, False, timedelta(seconds=_COMMAND_SECONDS), wait_for_workers=False)
    store.set("intruder", "1")
    assert store.get("intruder") == b"1"
    prefix, last = _last_command(store)
    # Blocks until rank 0 sends the command.
    sealed = store.get(f"{prefix}part/{last + 3}/0")
    assert len(sealed) > 16
    assert len(zlib.compress(sealed)) >= len(sealed), "the command is not encrypted"


def _last_command(store: TCPStore) -> tuple[str, int]:
    """Return the prefix of the group's keys and the number of a command, which exists for milliseconds."""
    end = time.monotonic() + _COMMAND_SECONDS
    while time.monotonic() < end:
        for key in store.list_keys():
            if match := re.fullmatch(r"(.*)command/(\d+)", key):
                return match[1], int(match[2])
        time.sleep(0.002)
    pytest.fail("no command passed through the store")


def _check_collectives(port: int) -> None:
    assert _received(port, b"", _SILENCE_SECONDS) == b""


_CHECKS: dict[tuple[str, str], Callable[[int], None]] = {
    ("nats", "bus"): _check_nats,
    ("redis", "read model"): _check_redis,
    ("dashboard", "page and API"): _check_dashboard,
    ("each role", "calls"): _check_mutual_tls,
    ("each role", "metrics page"): _check_mutual_tls,
    ("rank 0 of several", "store of the ranks"): _check_store,
    ("each rank of several", "collectives (gloo)"): _check_collectives,
}


def test_each_port_is_documented_and_gives_a_stranger_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBEALIGN_RUN_DASHBOARD", "on")
    algorithm = {"grpo": {"promptsPerStep": 4, "samplesPerPrompt": 2}}
    job = online_job(tmp_path, "tiny", algorithm, maxSteps=100_000, trainer={"ranks": 2})
    with RunningJobs(write_jobs(tmp_path, job), tmp_path / "runs") as run:
        run.wait_for_step("tiny", 1)
        ports = _listening_ports(run, "tiny")
        assert {(port.process, port.purpose) for port in ports} == _documented_ports() == set(_CHECKS)
        for port in ports:
            address = ipaddress.ip_address(port.address)
            assert (getattr(address, "ipv4_mapped", None) or address).is_loopback, port
            _CHECKS[port.process, port.purpose](port.number)
        # All of it has harmed nothing.
        restarts = {name: process.get("restarts", 0) for name, process in run.processes("tiny").items()}
        assert not any(restarts.values()), restarts
        run.wait_for_step("tiny", max(run.steps("tiny")) + 2)
