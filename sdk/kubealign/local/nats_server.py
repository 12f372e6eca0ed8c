"""The job's own NATS server: its program, configuration and readiness."""

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path

from kubealign.local.failure import RunRefused
from kubealign.local.ports import LOOPBACK
from kubealign.nats_config import USER, NatsConfig, find_nats
from kubealign.process import NatsAccess, TlsFiles


@dataclass(frozen=True)
class NatsServer:
    """Everything but the process. `folder` holds the configuration and the store."""

    folder: Path
    port: int
    #: Distinguishes this server from a stranger on the same port.
    name: str
    password: str
    tls: TlsFiles

    @property
    def access(self) -> NatsAccess:
        return NatsAccess(url=f"tls://{LOOPBACK}:{self.port}", user=USER, password=self.password)

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
        """Writes the configuration, which holds a secret."""
        path = self.folder / "nats.conf"
        self.configuration.write(path)
        return [str(nats_program()), "-c", str(path)]

    async def ready(self) -> None:
        """Return when the server greets its clients. No deadline of its own."""
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
            # A listening socket gives no event before it is there.
            await asyncio.sleep(0.05)


def nats_program() -> Path:
    """The server's program. Raises RunRefused where there is none."""
    try:
        return find_nats()
    except FileNotFoundError as error:
        raise RunRefused(str(error)) from error
