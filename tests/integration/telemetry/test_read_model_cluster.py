"""The read model in a cluster: Redis behind a host name, and behind TLS."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from kubealign import read_model as reading
from kubealign.access.certificate_authority import CertificateAuthority, write_tls
from kubealign.local.servers.redis import LocalRedisServer
from kubealign.process_settings import RedisAccess, Role
from kubealign_services.telemetry.read_model_writer import ReadModelWriter
from support.redis_server import running_redis

pytestmark = pytest.mark.timeout(60, method="signal")


@pytest.fixture
async def redis(tmp_path: Path, unused_tcp_port: int) -> AsyncIterator[LocalRedisServer]:
    server = LocalRedisServer(tmp_path, unused_tcp_port, "kubealign:default:sums:", "secret", "admin-secret")
    async with running_redis(server):
        yield server


@asynccontextmanager
async def tls_in_front(redis: LocalRedisServer, folder: Path) -> AsyncIterator[RedisAccess]:
    """Start a TLS proxy with a certificate for localhost in front of the bundled server, which has no TLS."""
    files = write_tls(
        folder / "tls", CertificateAuthority.create("redis", timedelta(hours=1)), Role.RUNNER, ["localhost"]
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.certificate, files.key)

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(2**16):
            target.write(data)
            await target.drain()
        target.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, downstream = await asyncio.open_connection("127.0.0.1", redis.port)
        await asyncio.gather(copy(reader, downstream), copy(upstream, writer), return_exceptions=True)

    server = await asyncio.start_server(relay, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    try:
        yield redis.access.model_copy(update={"host": "localhost", "port": port, "tls": True, "ca": files.ca})
    finally:
        server.close()


async def said(model: ReadModelWriter, caplog: pytest.LogCaptureFixture) -> str:
    """Return the log output after a write that cannot be sent."""
    model.add_metrics(1, 1, {"loss": 1.0})
    async with asyncio.timeout(30):
        while not caplog.records:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return caplog.records[0].getMessage()


async def test_over_tls(redis: LocalRedisServer, tmp_path: Path) -> None:
    async with tls_in_front(redis, tmp_path) as access:
        async with ReadModelWriter(access) as model:
            model.add_metrics(1, 1, {"loss": 1.0})
        async with reading.ReadModelClient(access) as reader:
            assert [entry.step for entry in await reader.metrics()] == [1]


async def test_untrusted_certificate(
    redis: LocalRedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with tls_in_front(redis, tmp_path) as access:
        unknown = access.model_copy(update={"ca": None})
        async with ReadModelWriter(unknown) as model:
            assert "certificate verify failed" in await said(model, caplog)
        async with reading.ReadModelClient(unknown) as reader:
            with pytest.raises(reading.ReadModelUnavailable, match="certificate verify failed"):
                await reader.progress()
        # The write did not reach the server by another way.
        async with reading.ReadModelClient(access) as reader:
            assert await reader.metrics() == []


async def test_a_certificate_for_another_host(
    redis: LocalRedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with tls_in_front(redis, tmp_path) as access:
        other = access.model_copy(update={"host": "127.0.0.1"})
        async with ReadModelWriter(other) as model:
            assert "not valid for '127.0.0.1'" in await said(model, caplog)


async def test_unresolvable_name_stops_nothing(
    redis: LocalRedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    access = redis.access.model_copy(update={"host": "redis.kubealign.invalid"})
    async with asyncio.timeout(20):
        async with ReadModelWriter(access) as model:
            assert "the read model is unreachable" in await said(model, caplog)
    assert model.dropped == 1
