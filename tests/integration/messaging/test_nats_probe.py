"""The liveness probe of the NATS container against a real server."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from kubealign.access.certificate_authority import CertificateAuthority, write_tls
from kubealign.nats_config import NatsConfig, find_nats_server
from kubealign.pod_contract import NATS_PROBE_MODULE
from kubealign.process_settings import Role
from support.free_address import free_port

pytestmark = pytest.mark.timeout(90)


def probe(port: int) -> subprocess.CompletedProcess[str]:
    """Run the probe as the kubelet does."""
    command = [sys.executable, "-m", NATS_PROBE_MODULE, str(port)]
    return subprocess.run(command, capture_output=True, text=True, timeout=30)


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def server(tmp_path: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    tls = write_tls(tmp_path / "tls", CertificateAuthority.create("probe", timedelta(days=1)), Role.RUNNER)
    config = NatsConfig(
        listen=f"127.0.0.1:{free_port()}",
        name="probe",
        password="secret",
        tls=tls,
        store=tmp_path / "store",
        monitoring_port=port,
    )
    config.write(tmp_path / "nats.conf")
    with (tmp_path / "nats.log").open("wb") as log:
        process = subprocess.Popen(
            [find_nats_server(), "-c", tmp_path / "nats.conf"], stdout=log, stderr=subprocess.STDOUT
        )
    yield process
    process.kill()
    process.wait(20)
    assert "Server is ready" in (tmp_path / "nats.log").read_text()


def test_healthy_hung_and_missing_server(server: subprocess.Popen[bytes], port: int) -> None:
    while probe(port).returncode != 0:
        assert server.poll() is None, "nats-server ended"
    server.send_signal(signal.SIGSTOP)
    hung = probe(port)
    assert hung.returncode == 1
    assert hung.stderr == f"NATS does not answer on its monitoring port {port}: timed out\n"
    server.kill()
    server.wait(20)
    assert probe(port).returncode == 1
