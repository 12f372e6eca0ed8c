"""The job's own NATS server: how it is configured, and where its program lies. The same on one machine and in
a pod."""

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from kubealign.process import TlsFiles

USER = "job"
MAX_PAYLOAD_BYTES = 8 * 2**20
MAX_STORE_BYTES = 64 * 2**30


@dataclass(frozen=True)
class NatsConfig:
    """TLS with the clients' certificates verified, one user, JetStream on disk.

    https://docs.nats.io/running-a-nats-service/configuration"""

    #: host:port.
    listen: str
    #: What the server calls itself to its clients.
    name: str
    password: str
    tls: TlsFiles
    #: Folder of the streams.
    store: Path

    @property
    def text(self) -> str:
        """The server's configuration file. It holds the password."""
        quoted = json.dumps
        return f"""\
server_name: {quoted(self.name)}
listen: {quoted(self.listen)}
max_payload: {MAX_PAYLOAD_BYTES}
max_pending: {16 * MAX_PAYLOAD_BYTES}
tls {{
  cert_file: {quoted(str(self.tls.certificate))}
  key_file: {quoted(str(self.tls.key))}
  ca_file: {quoted(str(self.tls.ca))}
  verify: true
  timeout: 10
}}
authorization {{
  user: {quoted(USER)}
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
        """Write it, readable by its owner alone. Raises OSError."""
        path.touch(mode=0o600)
        path.write_text(self.text)


def find_nats() -> Path:
    """The wheel's, beside this Python, else the one on PATH. Raises FileNotFoundError where there is none."""
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise FileNotFoundError(
            "nats-server was not found: pip install 'kubealign[services]', or put one on PATH"
        )
    return Path(found)
