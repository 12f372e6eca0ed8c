"""Permissions of the users of Redis, asked of real servers: on Redis 7 with ACL DRYRUN, on 6.2 by sending.

The tables of docs/security.md state what these tests show.
"""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import NoPermissionError, RedisError, ResponseError

from cluster.support.redis_process import RedisProcess
from kubealign.access.redis_acl import READER_COMMANDS, command_rules
from kubealign.local.servers.redis import LocalRedisServer
from kubealign_operator.controller.config import RedisConfig
from kubealign_operator.controller.platform_redis.server import PlatformRedis
from support.free_address import free_port
from support.redis_programs import PROGRAMS

pytestmark = pytest.mark.timeout(120, method="signal")

_OWN, _OTHER = "kubealign:ns:one:", "kubealign:ns:two:"
_WRITES = [
    ("HSET", f"{_OWN}status", "step", "1"),
    ("SET", f"{_OWN}heartbeat:driver", "{}", "EX", "15"),
    ("XADD", f"{_OWN}metrics", "MAXLEN", "~", "100", "*", "step", "1", "json", "{}"),
    ("PING",),
]
_READS = [
    ("HMGET", f"{_OWN}status", "step"),
    ("GETRANGE", f"{_OWN}heartbeat:driver", "0", "9"),
    ("XRANGE", f"{_OWN}metrics", "-", "+", "COUNT", "1"),
    ("XREVRANGE", f"{_OWN}metrics", "+", "-", "COUNT", "1"),
]
_OF_OTHERS = [
    ("HSET", f"{_OTHER}status", "step", "1"),
    ("SET", f"{_OTHER}heartbeat:driver", "{}"),
    ("XADD", f"{_OTHER}metrics", "*", "json", "{}"),
    ("HMGET", f"{_OTHER}status", "step"),
    ("XRANGE", f"{_OTHER}metrics", "-", "+"),
    ("SET", "kubealign:ns:one", "x"),
]
# Commands that neither the writer nor a reader needs.
_FORBIDDEN = [
    ("EVAL", "return 1", "0"),
    ("EVALSHA", "e0e1f9fabfc9d4800c877a703b823ac0578ff8db", "0"),
    ("SCRIPT", "LOAD", "return 1"),
    ("SCAN", "0"),
    ("KEYS", "*"),
    ("RANDOMKEY",),
    ("DBSIZE",),
    ("FLUSHALL",),
    ("FLUSHDB",),
    ("CONFIG", "GET", "*"),
    ("INFO",),
    ("MONITOR",),
    ("DEBUG", "SLEEP", "0"),
    ("SAVE",),
    ("SHUTDOWN", "NOSAVE"),
    ("REPLICAOF", "NO", "ONE"),
    ("CLUSTER", "INFO"),
    ("MODULE", "LIST"),
    ("ACL", "LIST"),
    ("ACL", "WHOAMI"),
    ("CLIENT", "LIST"),
    ("CLIENT", "PAUSE", "1"),
    ("BLPOP", f"{_OWN}list", "0.01"),
    ("BRPOP", f"{_OWN}list", "0.01"),
    ("BZPOPMIN", f"{_OWN}set", "0.01"),
    ("XREAD", "BLOCK", "1", "STREAMS", f"{_OWN}metrics", "$"),
    ("XREADGROUP", "GROUP", "g", "c", "STREAMS", f"{_OWN}metrics", ">"),
    ("WAIT", "0", "1"),
    ("SUBSCRIBE", "kubealign:channel"),
    ("PSUBSCRIBE", "*"),
    ("PUBLISH", f"{_OWN}channel", "x"),
    ("SELECT", "1"),
    ("SWAPDB", "0", "1"),
    ("MOVE", f"{_OWN}status", "1"),
    ("MIGRATE", "127.0.0.1", "1", f"{_OWN}status", "0", "1"),
    ("DUMP", f"{_OWN}status"),
    ("RESTORE", f"{_OWN}x", "0", "x"),
    ("OBJECT", "ENCODING", f"{_OWN}status"),
    ("MEMORY", "USAGE", f"{_OWN}status"),
    ("HGETALL", f"{_OWN}status"),
    ("GET", f"{_OWN}heartbeat:driver"),
    ("DEL", f"{_OWN}status"),
    ("RENAME", f"{_OWN}status", f"{_OWN}x"),
    ("COPY", f"{_OWN}status", f"{_OWN}x"),
    ("SORT", f"{_OWN}status"),
    ("APPEND", f"{_OWN}x", "x"),
    ("SETRANGE", f"{_OWN}x", "500000000", "x"),
    ("SETBIT", f"{_OWN}x", "4000000000", "1"),
    ("PFADD", f"{_OWN}x", "x"),
    ("GEOADD", f"{_OWN}x", "0", "0", "x"),
    ("LPUSH", f"{_OWN}x", "x"),
    ("HSCAN", f"{_OWN}status", "0"),
    ("WATCH", f"{_OWN}status"),
]
_FORBIDDEN_SINCE_7 = [
    ("FUNCTION", "LIST"),
    ("FCALL", "f", "0"),
    ("EVAL_RO", "return 1", "0"),
    ("SSUBSCRIBE", "kubealign:channel"),
    ("SPUBLISH", "kubealign:channel", "x"),
    ("BLMPOP", "0.01", "1", f"{_OWN}list", "LEFT"),
]


class Permissions:
    """The permissions of a user of a running server."""

    def __init__(self, admin: Redis, user: str, password: str) -> None:
        self._admin, self._user, self._password = admin, user, password
        version = admin.info("server")["redis_version"]
        self.is_redis_7 = int(str(version).partition(".")[0]) >= 7

    def allows(self, *command: str) -> bool:
        if self.is_redis_7:
            try:
                answer = self._admin.execute_command("ACL DRYRUN", self._user, *command)
            except NoPermissionError:
                return False
            return answer in (b"OK", "OK")
        port = self._admin.connection_pool.connection_kwargs["port"]
        with Redis(port=port, username=self._user, password=self._password, socket_timeout=5) as client:
            try:
                client.execute_command(*command)
            except NoPermissionError:
                return False
            except ResponseError:
                # The command was carried out, and failed for another reason.
                return True
        return True

    def check(self, allowed: list[tuple[str, ...]], forbidden: list[tuple[str, ...]]) -> None:
        """Check both tables, each command of them."""
        if self.is_redis_7:
            forbidden = [*forbidden, *_FORBIDDEN_SINCE_7]
        assert [command for command in allowed if not self.allows(*command)] == []
        assert [command for command in forbidden if self.allows(*command)] == []


@pytest.fixture(scope="module", params=PROGRAMS)
def program(request: pytest.FixtureRequest) -> Path:
    return request.param()


@pytest.fixture(scope="module")
def process(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    with RedisProcess(tmp_path_factory.mktemp("redis"), program) as running:
        yield running


async def test_a_job_writes_its_own_keys_and_does_nothing_else(process: RedisProcess) -> None:
    """Check the user that the operator creates. On Redis 7 and later the job cannot read its keys."""
    platform = PlatformRedis(RedisConfig.model_validate(process.config))
    await platform.create_user("kubealign-1", "secret", _OWN)
    await platform.aclose()
    permissions = Permissions(process.client(), "kubealign-1", "secret")
    permissions.check(_WRITES, [*_READS, *_OF_OTHERS, *_FORBIDDEN])
    if permissions.is_redis_7:
        # It returns the former value.
        assert not permissions.allows("SET", f"{_OWN}heartbeat:driver", "{}", "GET")


async def test_a_transaction_of_the_writer_is_allowed(process: RedisProcess) -> None:
    platform = PlatformRedis(RedisConfig.model_validate(process.config))
    await platform.create_user("kubealign-1", "secret", _OWN)
    await platform.aclose()
    with Redis(port=process.port, username="kubealign-1", password="secret") as client:
        pipeline = client.pipeline(transaction=True)
        for command in _WRITES:
            pipeline.execute_command(*command)
        assert len(pipeline.execute()) == len(_WRITES)
        refused = client.pipeline(transaction=True)
        refused.execute_command("HSET", f"{_OTHER}status", "step", "1")
        with pytest.raises(RedisError):
            refused.execute()


def test_the_user_of_a_run_on_one_machine(program: Path, tmp_path: Path) -> None:
    """Check the user of the local Redis, which the job's processes and its display share."""
    server = LocalRedisServer(tmp_path, free_port(), _OWN, "secret", "admin")
    [_, configuration] = server.command()
    with (tmp_path / "log").open("ab") as log:
        running = subprocess.Popen([program, configuration], stdout=log, stderr=log)
    try:
        admin = Redis(port=server.port, username="admin", password="admin")
        deadline = time.monotonic() + 20
        while True:
            try:
                admin.ping()
                break
            except RedisError:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        Permissions(admin, "job", "secret").check([*_WRITES, *_READS], [*_OF_OTHERS, *_FORBIDDEN])
    finally:
        running.kill()
        running.wait(timeout=20)


def test_the_user_of_the_dashboard(process: RedisProcess) -> None:
    """Check the rules of the chart's users.acl, which tests/cluster/platform/test_redis.py compares."""
    rules = ("reset", "on", ">secret", "~kubealign:*", "resetchannels", *command_rules(*READER_COMMANDS))
    process.client().execute_command("ACL SETUSER", "dashboard", *rules)
    Permissions(process.client(), "dashboard", "secret").check(
        [*_READS, ("XRANGE", f"{_OTHER}metrics", "-", "+")],
        [*(write for write in _WRITES if write != ("PING",)), ("HMGET", "else", "x"), *_FORBIDDEN],
    )
