"""The platform's Redis: a user for each job, and the progress that the drivers write.

Redis is never a prerequisite: a call that fails while it is unavailable is repeated later.
"""

import hashlib
import logging
from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from kubealign_operator import names
from kubealign_operator.controller.config import RedisConfig
from kubealign_operator.controller.kube.ownership import JobKey

log = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 5.0
# See kubealign.read_model.
_KEYS = ("status", "metrics", "samples")
_ENTRIES_PER_STEP = 4
_SCAN_COUNT = 1000


class RedisUnavailable(Exception):
    """Redis did not answer, or refused the command."""


class PlatformRedis:
    """Redis with administrator rights. Every method raises RedisUnavailable."""

    def __init__(self, config: RedisConfig) -> None:
        self._config = config
        self._connection: Redis | None = None

    async def aclose(self) -> None:
        if self._connection is not None:
            await self._connection.aclose()
            self._connection = None

    async def list_users(self) -> dict[str, str]:
        """Return user name -> first key pattern that the user may access; empty: none."""
        lines: list[str] = await self._execute("ACL LIST")
        users = {}
        for line in lines:
            _, name, *rules = line.split()
            users[name] = next((rule[1:] for rule in rules if rule.startswith("~")), "")
        return users

    async def create_user(self, user: str, password: str, prefix: str) -> None:
        """Create a user with all harmless commands, restricted to keys and channels with this prefix."""
        pattern = f"{escape_glob(prefix)}*"
        digest = hashlib.sha256(password.encode()).hexdigest()
        rules = (
            "reset",
            "on",
            f"#{digest}",
            f"~{pattern}",
            "resetchannels",
            f"&{pattern}",
            "+@all",
            "-@admin",
            "-@dangerous",
        )
        await self._execute("ACL SETUSER", user, *rules)

    async def remove_user(self, user: str) -> None:
        """Delete the user and close its connections."""
        await self._execute("ACL DELUSER", user)

    async def remove_keys(self, prefix: str) -> None:
        """Delete the keys of a job; heartbeats expire by themselves."""
        await self._execute("UNLINK", *(prefix + name for name in _KEYS))

    async def jobs_with_keys(self) -> set[JobKey]:
        """Return the jobs that have keys. Scans every key of Redis."""
        try:
            scanned = self._client().scan_iter(match=f"{names.KUBEALIGN}:*", count=_SCAN_COUNT)
            jobs = {job_of_key(name) async for name in scanned}
        except (RedisError, OSError, TimeoutError) as error:
            raise RedisUnavailable(f"SCAN: {error}") from error
        return {job for job in jobs if job is not None}

    async def read_progress(self, prefixes: Sequence[str]) -> list[tuple[dict[str, str], list[Any]]]:
        """Return (status, newest metrics entries) for each job, in one round trip."""
        if not prefixes:
            return []
        try:
            async with self._client().pipeline(transaction=False) as pipeline:
                batch: Any = pipeline
                for prefix in prefixes:
                    batch.hgetall(f"{prefix}status")
                    batch.xrevrange(f"{prefix}metrics", "+", "-", _ENTRIES_PER_STEP)
                answers = await batch.execute()
        except (RedisError, OSError, TimeoutError) as error:
            raise RedisUnavailable(str(error)) from error
        return list(zip(answers[0::2], answers[1::2], strict=True))

    async def _execute(self, command: str, *arguments: Any) -> Any:
        try:
            client: Any = self._client()
            return await client.execute_command(command, *arguments)
        except (RedisError, OSError, TimeoutError) as error:
            raise RedisUnavailable(f"{command}: {error}") from error

    def _client(self) -> Redis:
        if self._connection is None:
            config = self._config
            self._connection = Redis(
                host=config.host,
                port=config.port,
                username=config.user,
                password=config.password_file.read_text().strip() if config.password_file else None,
                ssl=config.tls,
                ssl_ca_certs=str(config.ca_file) if config.ca_file else None,
                socket_timeout=_TIMEOUT_SECONDS,
                socket_connect_timeout=_TIMEOUT_SECONDS,
                # The callers repeat the command at their own interval.
                retry=Retry(NoBackoff(), 0),
                decode_responses=True,
            )
        return self._connection


def job_of_key(name: str) -> JobKey | None:
    """Return the job of a key or key pattern; None: it belongs to no job."""
    match name.split(":"):
        case [names.KUBEALIGN, namespace, job, _, *_]:
            return JobKey(namespace, job)
    return None


def escape_glob(text: str) -> str:
    """Escape the text for a Redis glob pattern."""
    return "".join(f"\\{character}" if character in "*?[]\\" else character for character in text)
