"""The metrics endpoint: only for certificates of the job."""

import ssl
import urllib.error
import urllib.request
from datetime import timedelta
from pathlib import Path

import pytest

from kubealign.access.certificate_authority import CertificateAuthority, write_tls
from kubealign.process_settings import Role, TlsFiles
from kubealign_services.runtime.rpc.server import PortInUse
from kubealign_services.telemetry.metrics import MetricsServer, ProcessMetrics

pytestmark = pytest.mark.timeout(60)


def read(port: int, tls: TlsFiles, identify: bool = True) -> str:
    context = ssl.create_default_context(cafile=str(tls.ca))
    if identify:
        context.load_cert_chain(tls.certificate, tls.key)
    with urllib.request.urlopen(f"https://127.0.0.1:{port}/metrics", context=context, timeout=10) as reply:
        return str(reply.read().decode())


@pytest.fixture
def authority() -> CertificateAuthority:
    return CertificateAuthority.create("metrics-test", timedelta(hours=1))


def test_only_the_job_can_read(tmp_path: Path, authority: CertificateAuthority) -> None:
    tls = write_tls(tmp_path, authority, Role.TRAINER)
    runner = write_tls(tmp_path, authority, Role.RUNNER)
    stranger = write_tls(
        tmp_path / "x", CertificateAuthority.create("metrics-test", timedelta(hours=1)), Role.RUNNER
    )
    metrics = ProcessMetrics("metrics-test", "trainer", "trainer-0")
    metrics.set_step({"loss": 0.5})
    with MetricsServer("127.0.0.1:0", tls, metrics) as server:
        port = server.port
        assert 'kubealign_step{name="loss"} 0.5' in read(port, runner)
        forged = TlsFiles(ca=tls.ca, certificate=stranger.certificate, key=stranger.key)
        for files, identify in ((runner, False), (forged, True)):
            with pytest.raises((ssl.SSLError, urllib.error.URLError, ConnectionError)):
                read(port, files, identify)
        with (
            pytest.raises(PortInUse, match=f"cannot serve metrics at 127.0.0.1:{port}"),
            MetricsServer(f"127.0.0.1:{port}", tls, metrics),
        ):
            raise AssertionError("two servers share a port")
        assert "kubealign_step" in read(port, runner)
    with pytest.raises(urllib.error.URLError):
        read(port, runner)
