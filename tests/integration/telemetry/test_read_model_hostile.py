"""The read model's client against everything that a process of the job can write with its own user.

Each value ends in an error that names its key, never in another exception.
"""

import json
from collections.abc import AsyncIterator

import pytest
import redis.asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kubealign import read_model as reading
from kubealign.client.records import JobRef
from kubealign.errors import MetricsUnreadable
from kubealign.local.servers.redis import LocalRedisServer
from kubealign.read_model import ReadModelClient, ReadModelUnreadable
from kubealign.redis_replies import ReplyTooLarge, bounded_redis
from kubealign_dashboard.cluster.redis_telemetry import RedisTelemetry
from kubealign_services.telemetry.read_model_writer import ReadModelWriter
from support.redis_server import running_redis

pytestmark = pytest.mark.timeout(120, method="signal")

_JOB = JobRef("evil", "evil")
_PREFIX = "kubealign:evil:evil:"
_MIB = 2**20
_DEEP = b"[" * 100_000


@pytest.fixture(scope="module")
async def server(
    tmp_path_factory: pytest.TempPathFactory, unused_tcp_port_factory
) -> AsyncIterator[LocalRedisServer]:
    folder = tmp_path_factory.mktemp("redis")
    server = LocalRedisServer(folder, unused_tcp_port_factory(), _PREFIX, "secret", "admin")
    async with running_redis(server):
        yield server


@pytest.fixture
async def tenant(server: LocalRedisServer) -> AsyncIterator[redis.asyncio.Redis]:
    """Client of the job's own user, of an empty Redis."""
    admin = redis.asyncio.Redis(port=server.port, username="admin", password="admin")
    await admin.flushall()
    await admin.aclose()
    async with redis.asyncio.Redis(port=server.port, username="job", password="secret") as client:
        yield client


async def _read_all(access) -> dict[str, object]:
    """Return the results of every method, an error in place of the result of one that fails."""
    calls = {
        "progress": ReadModelClient.progress,
        "metrics": ReadModelClient.metrics,
        "newest_metrics": ReadModelClient.newest_metrics,
        "samples": ReadModelClient.samples,
        "newest_samples": ReadModelClient.newest_samples,
        "step_samples": lambda reader: reader.samples(step=1),
        "heartbeats": lambda reader: reader.heartbeats(["driver"]),
    }
    results: dict[str, object] = {}
    async with ReadModelClient(access) as reader:
        for name, call in calls.items():
            try:
                results[name] = await call(reader)
            except ReadModelUnreadable as error:
                results[name] = error
    return results


_STREAM_METHODS = {
    "metrics": ("metrics", "newest_metrics"),
    "samples": ("samples", "newest_samples", "step_samples"),
}


@pytest.mark.parametrize("stream", ["metrics", "samples"])
@pytest.mark.parametrize(
    "text",
    [
        pytest.param(_DEEP, id="deep"),
        pytest.param(b'{"reward": \xff}', id="not-utf-8"),
        pytest.param(b'{"reward": 1e999}', id="infinite"),
        pytest.param(b'{"reward": ' + b"9" * 400 + b"}", id="long-integer"),
        pytest.param(b"[]", id="no-object"),
        pytest.param(b'{"prompt": "' + b"p" * 5 * _MIB + b'"}', id="large"),
        pytest.param(b'{"prompt": "' + b"p" * 30 * _MIB + b'"}', id="larger-than-a-reply"),
    ],
)
async def test_an_unreadable_entry_is_an_error_that_names_it(
    server: LocalRedisServer, tenant: redis.asyncio.Redis, stream: str, text: bytes
) -> None:
    await tenant.xadd(f"{_PREFIX}{stream}", {"step": "1", "json": text})
    results = await _read_all(server.access)
    for name, result in results.items():
        if name in _STREAM_METHODS[stream]:
            assert isinstance(result, ReadModelUnreadable)
            assert f"{_PREFIX}{stream}" in str(result)
        else:
            assert not isinstance(result, Exception)
    telemetry = RedisTelemetry(server.access)
    read = telemetry.metrics if stream == "metrics" else telemetry.samples
    with pytest.raises(MetricsUnreadable, match=f"{_PREFIX}{stream}"):
        await read(_JOB)
    await telemetry.close()


@pytest.mark.parametrize("key", ["status", "metrics", "samples"])
async def test_a_key_of_another_type(server: LocalRedisServer, tenant: redis.asyncio.Redis, key: str) -> None:
    await tenant.set(_PREFIX + key, "x")
    results = await _read_all(server.access)
    for name in _STREAM_METHODS.get(key, ("progress",)):
        assert f"{_PREFIX}{key} cannot be read: WRONGTYPE" in str(results[name])


async def test_odd_fields_count_as_unknown(server: LocalRedisServer, tenant: redis.asyncio.Redis) -> None:
    await tenant.hset(
        f"{_PREFIX}status",
        mapping={"phase": b"\xff", "step": "inf", "max_steps": "1e300", "fence": "nan", "started_at": "-inf"},
    )
    document = {
        "rewards": [1],
        "weight_version": [],
        "tokens": 3,
        "token_values": {"kl": [[], {}, "nan", 1]},
        "prompt": {"a": 1},
        "truncated": "no",
    }
    await tenant.xadd(f"{_PREFIX}samples", {"step": b"\xff", "json": json.dumps(document)})
    await tenant.xadd(f"{_PREFIX}metrics", {"fence": "1e400", "json": '{"a": [1], "b": true, "c": 2}'})
    results = await _read_all(server.access)
    assert results["progress"] == reading.JobProgress(phase="\ufffd")
    [metrics] = results["metrics"]
    assert (metrics.step, metrics.fence, metrics.values) == (0, 0, {"c": 2.0})
    [sample] = results["samples"]
    assert (sample.rewards, sample.weight_version, sample.tokens) == ({}, 0, ())
    assert sample.token_values["kl"][:2] == (None, None)


@pytest.mark.parametrize("text", [_DEEP, b"\xff", b"x" * 2**15, b"[]"])
async def test_an_unreadable_heartbeat_hides_no_other(
    server: LocalRedisServer, tenant: redis.asyncio.Redis, text: bytes
) -> None:
    await tenant.set(f"{_PREFIX}heartbeat:rollout-0", text)
    await tenant.hset(f"{_PREFIX}heartbeat:rollout-1", "a", "b")
    await tenant.set(f"{_PREFIX}heartbeat:driver", '{"running": 5}')
    async with ReadModelClient(server.access) as reader:
        beats = await reader.heartbeats(["rollout-0", "rollout-1", "rollout-2", "driver"])
    assert beats.keys() == {"rollout-0", "rollout-1", "driver"}
    assert beats["driver"] == {"running": 5}
    assert f"{_PREFIX}heartbeat:rollout-0 cannot be read" in beats["rollout-0"]["unreadable"]
    assert "WRONGTYPE" in beats["rollout-1"]["unreadable"]


async def test_a_large_status_field(server: LocalRedisServer, tenant: redis.asyncio.Redis) -> None:
    await tenant.hset(f"{_PREFIX}status", "phase", b"x" * 30 * _MIB)
    async with ReadModelClient(server.access) as reader:
        with pytest.raises(ReadModelUnreadable, match=f"{_PREFIX}status"):
            await reader.progress()


async def test_a_page_is_bounded_in_bytes_and_all_pages_are_complete(
    server: LocalRedisServer, tenant: redis.asyncio.Redis
) -> None:
    text = json.dumps({"prompt": "p" * 1_900_000})
    for step in range(12):
        await tenant.xadd(f"{_PREFIX}samples", {"step": step, "json": text})
    async with ReadModelClient(server.access) as reader:
        steps, after = [], reading.STREAM_START
        while page := await reader.samples(after, 100):
            assert sum(len(sample.prompt) for sample in page) <= reading.MAX_PAGE_BYTES
            steps += [sample.step for sample in page]
            after = page[-1].entry
        assert steps == list(range(12))
        newest = await reader.samples(count=100, newest=True)
        assert [sample.step for sample in newest] == [11, 10, 9, 8]


async def test_a_reply_is_not_read_beyond_its_limit(
    server: LocalRedisServer, tenant: redis.asyncio.Redis
) -> None:
    """Check that large parts, many small parts and many fields are refused, and the client goes on."""
    await tenant.set(f"{_PREFIX}large", b"x" * 2 * _MIB)
    await tenant.hset(f"{_PREFIX}fields", mapping={str(number): "" for number in range(20_000)})
    options = {"host": "127.0.0.1", "port": server.port, "username": "admin", "password": "admin"}
    async with bounded_redis(_MIB, timeout_seconds=5, retries=0, **options) as client:
        for command, key in (("GET", "large"), ("HGETALL", "fields")):
            with pytest.raises(ReplyTooLarge):
                await client.execute_command(command, _PREFIX + key)
        assert await client.getrange(f"{_PREFIX}large", 0, 3) == b"xxxx"
        assert await client.execute_command("HLEN", f"{_PREFIX}fields") == 20_000


async def test_the_writer_keeps_to_the_size_of_an_entry(
    server: LocalRedisServer, tenant: redis.asyncio.Redis
) -> None:
    async with ReadModelWriter(server.access) as model:
        model.add_sample(1, {"prompt": "p" * 6 * _MIB, "response": "r", "tokens": ["r"], "reward": 0.5})
    async with ReadModelClient(server.access) as reader:
        [sample] = await reader.samples()
    assert (len(sample.prompt), sample.response, sample.tokens, sample.reward) == (2**18, "r", (), 0.5)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(
        st.sampled_from(["phase", "step", "updated_at", "x"]), st.binary(max_size=30), min_size=1
    ),
    st.binary(max_size=60) | st.text('[]{}",:\\u0d8ae-.19NIn', max_size=40).map(str.encode),
)
async def test_no_bytes_raise_another_exception(
    server: LocalRedisServer, tenant: redis.asyncio.Redis, fields: dict[str, bytes], text: bytes
) -> None:
    await tenant.hset(f"{_PREFIX}status", mapping=fields)
    for stream in ("metrics", "samples"):
        await tenant.xadd(f"{_PREFIX}{stream}", {"step": text, "json": text}, maxlen=1, approximate=False)
    await tenant.set(f"{_PREFIX}heartbeat:driver", text)
    assert len(await _read_all(server.access)) == 7
