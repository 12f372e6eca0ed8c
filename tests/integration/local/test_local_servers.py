"""The real NATS and Redis servers of a run."""

import asyncio
import os
import signal
import socket
import ssl

import nats
import pytest
import redis.asyncio
from local_job import Place, driver, mode, prepare, trainer
from nats.errors import Error as NatsError
from redis.exceptions import AuthenticationError, NoPermissionError

from kubealign.local.processes.ports import PortAllocator
from kubealign.local.processes.supervisor import UnitState
from kubealign.local.run_dir.status import Phase
from kubealign.process_settings import ProcessSettings

pytestmark = pytest.mark.timeout(90)
JOB = [prepare(), trainer(), driver("trainer")]


def told(place: Place) -> ProcessSettings:
    return ProcessSettings.model_validate_json((place.folder.settings / "driver.json").read_text())


def tls(settings: ProcessSettings, with_certificate: bool = True) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(settings.tls.ca))
    if with_certificate:
        context.load_cert_chain(settings.tls.certificate, settings.tls.key)
    return context


async def connect(settings: ProcessSettings, **changes):
    options = {
        "servers": settings.nats.url,
        "user": settings.nats.user,
        "password": settings.nats.password,
        "tls": tls(settings),
        "allow_reconnect": False,
        "connect_timeout": 10,
    }
    return await nats.connect(**{**options, **changes})


def job_redis(settings: ProcessSettings, **changes) -> redis.asyncio.Redis:
    access = settings.redis
    options = {"username": access.user, "password": access.password, "decode_responses": True}
    return redis.asyncio.Redis(host=access.host, port=access.port, **{**options, **changes})


async def test_servers_restart_with_the_same_ports_and_data(place: Place) -> None:
    begun = await place.begin(JOB)
    await begun.all_ready()
    settings = told(place)
    client = await connect(settings)
    assert client.max_payload == 8 * 2**20
    stream = client.jetstream()
    await stream.add_stream(name="work", subjects=["work"])
    await stream.publish("work", b"one")
    await client.close()
    async with job_redis(settings) as store:
        await store.hset(settings.redis.prefix + "status", "phase", "Running")
    # appendfsync everysec concerns power cuts: a kill -9 loses no completed write.
    for name in ("nats", "redis"):
        before = begun.pid(name)
        os.kill(before, signal.SIGKILL)
        await begun.until(lambda name=name: begun.state(name) is UnitState.RESTARTING)
        await begun.all_ready()
        assert begun.pid(name) != before
    client = await connect(settings)
    assert (await client.jetstream().stream_info("work")).state.messages == 1
    await client.close()
    async with job_redis(settings) as store:
        assert await store.hmget(settings.redis.prefix + "status", "phase") == ["Running"]
    # Only the servers were restarted.
    assert place.sequence("start") == ["prepare", "trainer-0", "driver"]
    assert (await begun.finish()).phase is Phase.SUCCEEDED


async def test_unauthenticated_clients_are_rejected(place: Place) -> None:
    begun = await place.begin(JOB)
    await begun.all_ready()
    settings = told(place)
    with pytest.raises((NatsError, ssl.SSLError, OSError)):
        await connect(settings, tls=tls(settings, with_certificate=False))
    with pytest.raises(NatsError):
        await connect(settings, password="guessed")
    for changes in ({"username": None, "password": None}, {"password": "guessed"}):
        async with job_redis(settings, **changes) as store:
            with pytest.raises(AuthenticationError):
                await store.ping()
    async with job_redis(settings) as store:
        with pytest.raises(NoPermissionError):
            await store.set("kubealign:default:other:status", "mine")
        with pytest.raises(NoPermissionError):
            await store.hmget("kubealign:default:other:status", "phase")
        with pytest.raises(NoPermissionError):
            await store.flushall()
    for path in (place.folder.nats / "nats.conf", place.folder.redis / "redis.conf"):
        assert mode(path) == 0o600
    assert settings.redis.password not in (place.folder.redis / "redis.conf").read_text()
    await begun.finish()


async def test_a_port_in_use_is_passed_over(place: Place) -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        taken = stranger.getsockname()[1]
        others = PortAllocator()
        free = [others.allocate() for _ in range(8)]
        del others
        begun = await place.begin(JOB, ports=PortAllocator(iter([taken, *free])))
        await begun.all_ready()
        assert str(taken) not in told(place).nats.url
        await begun.finish()


class Snatched(PortAllocator):
    """A port that was free when probed, and taken when the server starts."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._snatched = [port]

    def allocate(self) -> int:
        return self._snatched.pop() if self._snatched else super().allocate()


async def test_server_takes_another_port_when_its_port_was_taken(place: Place) -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        taken = stranger.getsockname()[1]
        begun = await place.begin(JOB, ports=Snatched(taken))
        await begun.until(lambda: any("nats ended with code 1" in text for text in place.told.said))
        await begun.all_ready()
        assert str(taken) not in told(place).nats.url
        assert "address already in use" in place.folder.log_path("nats").read_text()
        assert (await begun.finish()).phase is Phase.SUCCEEDED
    await asyncio.sleep(0)
