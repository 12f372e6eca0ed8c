"""A real NATS server for each test: TLS with client verification, a user, JetStream on disk."""

import asyncio
import contextlib
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path

import pytest

from kubealign.access.certificate_authority import CertificateAuthority, write_tls
from kubealign.process_settings import NatsAccess, Role, TlsFiles
from kubealign_services.messaging.jetstream.bus import JetStreamBus
from kubealign_services.messaging.retention_limits import Bounds
from support.free_address import free_port


class NatsServer:
    """A server that can be killed and restarted on the same port and store. `name` resolves to `host`."""

    def __init__(
        self,
        folder: Path,
        port: int,
        authority: CertificateAuthority,
        host: str = "127.0.0.1",
        name: str = "127.0.0.1",
    ) -> None:
        self.folder = folder
        self.port = port
        self.access = NatsAccess(url=f"tls://{name}:{port}", user="job", password="secret-of-the-job")
        tls = write_tls(folder / "server", authority, Role.RUNNER, [name])
        config = {
            "host": host,
            "port": port,
            "max_payload": 8 << 20,
            "tls": {
                "cert_file": str(tls.certificate),
                "key_file": str(tls.key),
                "ca_file": str(tls.ca),
                "verify": True,
            },
            "authorization": {"users": [{"user": self.access.user, "password": self.access.password}]},
            "jetstream": {"store_dir": str(folder / "store")},
        }
        (folder / "nats.conf").write_text(json.dumps(config))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        program = shutil.which("nats-server", path=str(Path(sys.executable).parent))
        assert program is not None, "the environment has no nats-server"
        with (self.folder / "nats.log").open("ab") as log:
            self._process = subprocess.Popen(
                [program, "-c", str(self.folder / "nats.conf")], stdout=log, stderr=log
            )

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(timeout=20)
            self._process = None

    def wipe(self) -> None:
        """Delete the store. Only while the server is stopped."""
        shutil.rmtree(self.folder / "store")


@pytest.fixture
def authority() -> CertificateAuthority:
    return CertificateAuthority.create("bus-test", timedelta(hours=1))


@pytest.fixture
def driver_tls(tmp_path: Path, authority: CertificateAuthority) -> TlsFiles:
    return write_tls(tmp_path / "driver", authority, Role.DRIVER)


@pytest.fixture
def make_server(tmp_path: Path, authority: CertificateAuthority) -> Iterator[Callable[..., NatsServer]]:
    """Start servers, each with its own store, which end with the test."""
    running: list[NatsServer] = []

    def make(host: str = "127.0.0.1", name: str = "127.0.0.1", port: int | None = None) -> NatsServer:
        folder = tmp_path / f"nats-{len(running)}"
        folder.mkdir()
        running.append(NatsServer(folder, port or free_port(), authority, host, name))
        running[-1].start()
        return running[-1]

    try:
        yield make
    finally:
        for server in running:
            server.kill()


@pytest.fixture
def server(make_server: Callable[..., NatsServer]) -> NatsServer:
    return make_server()


class Connections:
    """Connects to the test's server, and closes the connections."""

    def __init__(self, server: NatsServer, tls: TlsFiles) -> None:
        self._server = server
        self._tls = tls
        self._buses: list[JetStreamBus] = []

    async def __call__(
        self,
        name: str = "one",
        *,
        ack_wait: float = 30.0,
        bounds: Mapping[str, Bounds] | None = None,
        publish_timeout: float = 60.0,
    ) -> JetStreamBus:
        bus = await JetStreamBus.connect(
            self._server.access,
            self._tls,
            name=name,
            ack_wait=ack_wait,
            bounds=bounds,
            publish_timeout=publish_timeout,
        )
        self._buses.append(bus)
        return bus

    async def close(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*(bus.close() for bus in self._buses)), 20)


@pytest.fixture
async def connect(server: NatsServer, driver_tls: TlsFiles) -> AsyncIterator[Connections]:
    connections = Connections(server, driver_tls)
    try:
        yield connections
    finally:
        await connections.close()
