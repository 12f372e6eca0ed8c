"""A real Redis server of the test's own, as the chart's: an administrator, and nobody else."""

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
    """A context manager. It keeps nothing over a restart: neither keys nor users."""

    def __init__(self, folder: Path) -> None:
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
        self.daemon = Daemon("redis-server", [find_redis_program(), configuration], folder / "redis.log")

    @property
    def config(self) -> dict[str, Any]:
        """The operator's `redis`."""
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
        """kill -9, and start again empty."""
        self.daemon.kill()
        self.start()

    def _answers(self) -> bool:
        try:
            return bool(self.client().ping())
        except (RedisError, OSError):
            return False


def password_in(secret: Any) -> str:
    """The job's Redis password, of its Secret."""
    return base64.b64decode(secret.data["redis-password"]).decode()
