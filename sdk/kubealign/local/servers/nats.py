"""NATS server of one job: program, configuration and readiness."""

import asyncio
import json
import ssl
from dataclasses import dataclass
from pathlib import Path

from kubealign.local.errors import RunRefused
from kubealign.local.processes.ports import LOOPBACK
from kubealign.nats_config import NATS_USER, NatsConfig, find_nats_server
from kubealign.process_settings import NatsAccess, TlsFiles


@dataclass(frozen=True)
class LocalNatsServer:
    """A NATS server without its process. `folder` holds the configuration and the store."""

    folder: Path
    port: int
    #: Server name, which distinguishes this server from another one on the same port.
    name: str
    password: str
    tls: TlsFiles

    @property
    def access(self) -> NatsAccess:
        return NatsAccess(url=f"tls://{LOOPBACK}:{self.port}", user=NATS_USER, password=self.password)

    @property
    def configuration(self) -> NatsConfig:
        return NatsConfig(
            listen=f"{LOOPBACK}:{self.port}",
            name=self.name,
            password=self.password,
            tls=self.tls,
            store=self.folder / "store",
        )

    def command(self) -> list[str]:
        """Write the configuration, which holds a secret, and return the command line."""
        path = self.folder / "nats.conf"
        self.configuration.write(path)
        return [str(find_nats_program()), "-c", str(path)]

    async def wait_ready(self) -> None:
        """Wait until the server greets its clients. Has no timeout of its own."""
        while True:
            try:
                reader, writer = await asyncio.open_connection(LOOPBACK, self.port)
                try:
                    greeting = await reader.readline()
                finally:
                    writer.close()
                if greeting.startswith(b"INFO ") and json.loads(greeting[5:]).get("server_name") == self.name:
                    return
            except OSError:
                pass
            # No event announces a listening socket: poll.
            await asyncio.sleep(0.05)

    async def check_alive(self) -> None:
        """Log in and wait for the answer to a ping. Has no timeout of its own. Raises OSError.

        Without the client library, for which a single ping is no case:
        https://docs.nats.io/reference/reference-protocols/nats-protocol.
        """
        reader, writer = await asyncio.open_connection(LOOPBACK, self.port)
        try:
            await reader.readline()
            await writer.start_tls(self._ssl_context(), server_hostname=LOOPBACK)
            # The user is that of the certificate.
            login = {"pass": self.password, "verbose": False, "tls_required": True}
            writer.write(b"CONNECT " + json.dumps(login).encode() + b"\r\nPING\r\n")
            await writer.drain()
            answer = await reader.readline()
            if answer != b"PONG\r\n":
                raise OSError(f"NATS answered {answer[:100]!r} to a ping")
        finally:
            writer.close()

    def _ssl_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(self.tls.ca))
        context.load_cert_chain(str(self.tls.certificate), str(self.tls.key))
        return context


def find_nats_program() -> Path:
    """Return the path of nats-server. Raises RunRefused if it is not installed."""
    try:
        return find_nats_server()
    except FileNotFoundError as error:
        raise RunRefused(str(error)) from error
