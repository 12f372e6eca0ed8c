"""The platform's Redis: a user for each job, the keys of jobs, and the progress that the drivers write.

Redis is never a prerequisite: a call that fails while it is unavailable is repeated later. Jobs write what
they like to their own keys: every reply is bounded in size, and a value that cannot be read concerns its own
job only.
"""

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from kubealign.access.redis_acl import WRITER_COMMANDS, command_rules, prefix_pattern
from kubealign.access.redis_names import key_prefix
from kubealign.redis_replies import ReplyTooLarge, bounded_redis
from kubealign_operator import names
from kubealign_operator.controller.config import RedisConfig
from kubealign_operator.controller.kube.ownership import JobKey
from kubealign_operator.controller.platform_redis.replies import (
    PROGRESS_FIELDS,
    ProgressReply,
    RedisUser,
    UnreadableProgress,
    job_of_key,
    parse_progress_reply,
    parse_user,
)

log = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 5.0
# Timeout of one pipeline.
_BATCH_SECONDS = 20.0
# A driver's status and its last entries take some KiB.
_MAX_REPLY_BYTES = 512 * 2**10
# The list of users, and the keys of one SCAN.
_MAX_ADMIN_REPLY_BYTES = 32 * 2**20
# Jobs whose progress one pipeline reads.
_BATCH_JOBS = 32
_ENTRIES_PER_STEP = 4
_SCAN_COUNT = 1000


class RedisUnavailable(Exception):
    """Redis did not answer, or refused the command."""


def password_digest(password: str) -> str:
    """Return the digest of a password by which Redis stores and lists it."""
    return hashlib.sha256(password.encode()).hexdigest()


class PlatformRedis:
    """Redis with administrator rights. Every coroutine raises RedisUnavailable.

    Users and keys of other clusters with the same Redis are neither returned nor changed.
    """

    def __init__(self, config: RedisConfig, cluster_id: str = "") -> None:
        self._config = config
        self._cluster_id = cluster_id
        self._admin_connection: Redis | None = None
        self._progress_connection: Redis | None = None
        #: False: the server is older than Redis 7, which cannot allow writing only.
        self._has_write_only_keys = True

    async def aclose(self) -> None:
        for connection in (self._admin_connection, self._progress_connection):
            if connection is not None:
                await connection.aclose()
        self._admin_connection = self._progress_connection = None

    def user_of(self, uid: str) -> str:
        """Return the name of a job's user."""
        return names.redis_user(uid, self._cluster_id)

    def prefix_of(self, key: JobKey) -> str:
        """Return the prefix of a job's keys."""
        return names.redis_prefix(key.namespace, key.name, self._cluster_id)

    def job_of_user(self, name: str, user: RedisUser) -> JobKey | None:
        """Return the job of a user, from its key pattern; None: no job of this cluster has the user."""
        return job_of_key(user.pattern, self._cluster_id) if name.startswith(self.user_of("")) else None

    async def list_users(self) -> dict[str, RedisUser]:
        """Return the users of this cluster's jobs by name."""
        lines: list[str] = await self._execute("ACL LIST")
        users = dict(map(parse_user, lines))
        return {name: user for name, user in users.items() if name.startswith(self.user_of(""))}

    async def create_user(self, user: str, password: str, prefix: str) -> None:
        """Create a user that may send the writer's commands for keys with this prefix.

        Redis 7 and later: the user may write these keys and not read them.
        """
        pattern = prefix_pattern(prefix)
        credentials = ("reset", "on", f"#{password_digest(password)}", "resetchannels")
        commands = command_rules(*WRITER_COMMANDS)
        if self._has_write_only_keys:
            try:
                await self._send("ACL SETUSER", user, *credentials, f"%W~{pattern}", *commands)
                return
            except ResponseError as error:
                if "syntax error" not in str(error).lower():
                    raise RedisUnavailable(f"ACL SETUSER: {error}") from error
            log.warning("Redis is older than 7: a job's user may also read its own strings (SET with GET)")
            self._has_write_only_keys = False
        await self._execute("ACL SETUSER", user, *credentials, f"~{pattern}", *commands)

    async def remove_user(self, user: str) -> None:
        """Delete the user and close its connections."""
        await self._execute("ACL DELUSER", user)

    async def remove_keys(self, prefix: str) -> None:
        """Delete every key with this prefix, whatever its name."""
        async for keys in self._scan(prefix_pattern(prefix)):
            await self._execute("UNLINK", *keys)

    async def jobs_with_keys(self) -> set[JobKey]:
        """Return the jobs that have keys. Scans every key of Redis."""
        jobs: set[JobKey] = set()
        async for keys in self.scan_jobs():
            jobs |= keys.keys()
        return jobs

    async def scan_jobs(self) -> AsyncIterator[dict[JobKey, list[bytes]]]:
        """Scan the keys of this cluster's jobs: yield job -> some of its keys, perhaps several times."""
        async for keys in self._scan(prefix_pattern(key_prefix(self._cluster_id))):
            batch: dict[JobKey, list[bytes]] = {}
            for key in keys:
                job = job_of_key(key.decode(errors="replace"), self._cluster_id)
                if job is not None:
                    batch.setdefault(job, []).append(key)
            yield batch

    async def memory_usage(self, keys: Sequence[bytes]) -> int:
        """Return the bytes that these keys take. A key that has gone takes none."""
        pipeline = self._admin().pipeline(transaction=False)
        for key in keys:
            # SAMPLES 0: count every element; an estimate could miss a large one.
            pipeline.execute_command("MEMORY USAGE", key, "SAMPLES", 0)
        try:
            sizes = await self._call("MEMORY USAGE", pipeline.execute())
        except (ResponseError, ReplyTooLarge) as error:
            raise RedisUnavailable(f"MEMORY USAGE: {error}") from error
        return sum(size or 0 for size in sizes)

    async def read_progress(self, prefixes: Sequence[str]) -> list[ProgressReply | UnreadableProgress]:
        """Return the progress of each job, one round trip for some dozens of jobs."""
        replies: list[ProgressReply | UnreadableProgress] = []
        for start in range(0, len(prefixes), _BATCH_JOBS):
            replies += await self._read_batch(prefixes[start : start + _BATCH_JOBS])
        return replies

    async def _read_batch(self, prefixes: Sequence[str]) -> list[ProgressReply | UnreadableProgress]:
        pipeline: Any = self._progress().pipeline(transaction=False)
        for prefix in prefixes:
            pipeline.hmget(f"{prefix}status", PROGRESS_FIELDS)
            pipeline.xrevrange(f"{prefix}metrics", "+", "-", _ENTRIES_PER_STEP)
        try:
            answers = await self._call("HMGET, XREVRANGE", pipeline.execute(raise_on_error=False))
        except ReplyTooLarge as error:
            # The connection was closed before the reply that is too large was read: find its job.
            if len(prefixes) == 1:
                return [UnreadableProgress(f"keys {prefixes[0]}*: {error}")]
            middle = len(prefixes) // 2
            return [
                *await self._read_batch(prefixes[:middle]),
                *await self._read_batch(prefixes[middle:]),
            ]
        return [
            parse_progress_reply(prefix, status, entries)
            for prefix, status, entries in zip(prefixes, answers[0::2], answers[1::2], strict=True)
        ]

    async def _scan(self, pattern: str) -> AsyncIterator[list[bytes]]:
        """Yield all keys that match, in batches that are not empty."""
        cursor, count = 0, _SCAN_COUNT
        while True:
            try:
                scan = self._admin().scan(cursor=cursor, match=pattern, count=count)
                cursor, keys = await self._call("SCAN", scan)
            except (ResponseError, ReplyTooLarge) as error:
                if isinstance(error, ResponseError) or count == 1:
                    raise RedisUnavailable(f"SCAN: {error}") from error
                # The names of some keys are very long.
                count = max(1, count // 8)
                continue
            if keys:
                yield keys
            if cursor == 0:
                return

    async def _execute(self, command: str, *arguments: Any) -> Any:
        try:
            return await self._send(command, *arguments)
        except (ResponseError, ReplyTooLarge) as error:
            raise RedisUnavailable(f"{command}: {error}") from error

    async def _send(self, command: str, *arguments: Any) -> Any:
        """Send an administrator's command. Raises ResponseError and ReplyTooLarge in addition."""
        client: Any = self._admin()
        return await self._call(command, client.execute_command(command, *arguments))

    async def _call(self, command: str, call: Awaitable[Any]) -> Any:
        try:
            async with asyncio.timeout(_BATCH_SECONDS):
                return await call
        except (ReplyTooLarge, ResponseError):
            raise
        except (RedisError, OSError, TimeoutError) as error:
            raise RedisUnavailable(f"{command}: {error}") from error

    def _admin(self) -> Redis:
        if self._admin_connection is None:
            self._admin_connection = self._connect(_MAX_ADMIN_REPLY_BYTES)
        return self._admin_connection

    def _progress(self) -> Redis:
        if self._progress_connection is None:
            self._progress_connection = self._connect(_MAX_REPLY_BYTES)
        return self._progress_connection

    def _connect(self, max_reply_bytes: int) -> Redis:
        config = self._config
        return bounded_redis(
            max_reply_bytes,
            timeout_seconds=_TIMEOUT_SECONDS,
            # The callers repeat the command at their own interval.
            retries=0,
            host=config.host,
            port=config.port,
            username=config.user,
            password=config.password_file.read_text().strip() if config.password_file else None,
            ssl=config.tls,
            ssl_ca_certs=str(config.ca_file) if config.ca_file else None,
        )
