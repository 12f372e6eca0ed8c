"""Real Redis server for one test, with the administrator as its only user, as in the chart."""

import base64
import hashlib
import secrets
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from redis import Redis
from redis.exceptions import RedisError

from kubealign.local.servers.redis import find_redis_program
from support.free_address import free_port

from .daemon import Daemon

_READY_SECONDS = 20.0


class RedisProcess:
    """A context manager that runs Redis. A restart loses all keys and users."""

    def __init__(self, folder: Path, program: Path | None = None) -> None:
        """Create the server, which is not started; `program`: None: the bundled one."""
        self.port = free_port()
        self.password = secrets.token_hex(16)
        self.password_file = folder / "redis-password"
        self.password_file.write_text(self.password)
        digest = hashlib.sha256(self.password.encode()).hexdigest()
        configuration = folder / "redis.conf"
        configuration.write_text(
            f'bind 127.0.0.1\nport {self.port}\ndir {folder}\nsave ""\nuser default off\n'
            f"user admin on #{digest} ~* &* +@all\n"
        )
        self.daemon = Daemon(
            "redis-server", [program or find_redis_program(), configuration], folder / "redis.log"
        )

    @property
    def config(self) -> dict[str, Any]:
        """Section `redis` of the operator's configuration."""
        return {
            "host": "127.0.0.1",
            "port": self.port,
            "user": "admin",
            "passwordFile": str(self.password_file),
        }

    def client(self, user: str = "admin", password: str | None = None) -> "Redis":
        return Redis(port=self.port, username=user, password=password or self.password, decode_responses=True)

    def users(self) -> set[str]:
        names: Any = self.client().acl_users()
        return set(names)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.daemon.kill()

    def start(self) -> None:
        self.daemon.start()
        self.daemon.wait_until(self._answers, "an answer", _READY_SECONDS)

    def restart(self) -> None:
        """Kill Redis with SIGKILL, and start it again empty."""
        self.daemon.kill()
        self.start()

    def _answers(self) -> bool:
        try:
            return bool(self.client().ping())
        except (RedisError, OSError):
            return False


def password_in(secret: Any) -> str:
    """Return a job's Redis password from its Secret."""
    return base64.b64decode(secret.data["redis-password"]).decode()
