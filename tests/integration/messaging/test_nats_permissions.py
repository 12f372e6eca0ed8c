"""Permissions of each role on a real NATS server with the configuration of a job."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import nats
import nats.errors
import pytest
from nats.aio.client import Client

from kubealign.access.certificate_authority import CertificateAuthority, write_tls
from kubealign.access.nats_permissions import inbox_prefix
from kubealign.local.servers.nats import LocalNatsServer
from kubealign.process_settings import NatsAccess, Role, TlsFiles
from kubealign_services.messaging.contract import BusUnavailable
from kubealign_services.messaging.jetstream.bus import JetStreamBus
from support.free_address import free_port

pytestmark = pytest.mark.timeout(90)

#: Names of a pod's certificate: none of them may be taken for a user.
HOSTS = ("*.bus-peers.default.svc", "localhost", "127.0.0.1")
STREAMS = ("work", "rollouts", "scores", "refit", "refit-acks", "environments")
GENERATORS = (Role.ROLLOUT, Role.TRAINER)
SCORERS = (Role.REWARD, Role.REFERENCE, Role.TEACHER)


def requests(stream: str, consumer: str) -> tuple[str, ...]:
    """Return the JetStream requests with which `consumer` reads a stream."""
    return (
        f"$JS.API.CONSUMER.DURABLE.CREATE.{stream}.{consumer}",
        f"$JS.API.CONSUMER.CREATE.{stream}.{consumer}",
        f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}",
        f"$JS.ACK.{stream}.{consumer}.1.1.1.1.0",
        f"$JS.API.STREAM.MSG.GET.{stream}",
        f"$JS.API.DIRECT.GET.{stream}",
    )


#: Nobody needs these.
NEVER = (
    *(f"$JS.API.STREAM.{verb}.{stream}" for verb in ("DELETE", "MSG.DELETE") for stream in STREAMS),
    "$JS.API.STREAM.CREATE.other",
    "$JS.API.CONSUMER.DELETE.rollouts.driver",
    "$SYS.REQ.SERVER.PING",
    "anything",
)
#: Only the driver needs these.
MANAGES = (
    *(f"$JS.API.STREAM.{verb}.{stream}" for verb in ("PURGE", "UPDATE") for stream in STREAMS),
    *(f"$JS.API.CONSUMER.LIST.{stream}" for stream in STREAMS),
)
#: Role -> subjects that it may not publish to.
FORBIDDEN: dict[Role, tuple[str, ...]] = {
    Role.DRIVER: ("scores", "refit-acks", *requests("work", "rollout"), *requests("rollouts", "reward-a")),
    **{
        role: (
            *MANAGES,
            "work",
            "scores",
            "refit",
            "environments",
            *requests("rollouts", "driver"),
            *requests("scores", "driver"),
        )
        for role in GENERATORS
    },
    **{
        role: (
            *MANAGES,
            *("work", "rollouts", "refit", "refit-acks"),
            *requests("work", "rollout"),
            *requests("rollouts", "driver"),
            *requests("scores", "driver"),
            *requests("refit", "latest-1"),
            *requests("refit-acks", "driver"),
            "$JS.API.STREAM.CREATE.refit",
        )
        for role in SCORERS
    },
    Role.ENVIRONMENT: (
        *MANAGES,
        *("work", "rollouts", "scores", "refit", "refit-acks"),
        *requests("work", "rollout"),
        *requests("environments", "environments-rollout-0"),
    ),
    Role.RUNNER: (*MANAGES, *STREAMS, *requests("rollouts", "driver")),
}


class Job:
    """A server and the certificates of every role."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._authority = CertificateAuthority.create("bus", timedelta(hours=1))
        (folder / "nats").mkdir()
        self.server = LocalNatsServer(folder / "nats", free_port(), "bus", "secret", self.tls(Role.NATS))

    def tls(self, role: Role) -> TlsFiles:
        return write_tls(self._folder / "tls", self._authority, role, HOSTS)

    def access(self, role: Role) -> NatsAccess:
        return self.server.access.model_copy(update={"inbox_prefix": inbox_prefix(role)})

    async def bus(self, role: Role, publish_timeout: float = 20.0) -> JetStreamBus:
        return await JetStreamBus.connect(
            self.access(role),
            self.tls(role),
            name=role,
            updates_bounds=role is Role.DRIVER,
            publish_timeout=publish_timeout,
        )

    async def client(self, role: Role, refusals: asyncio.Queue[str]) -> Client:
        """Connect without the bus's own code; `refusals` gets what the server refuses."""
        tls, access = self.tls(role), self.access(role)
        context = ssl.create_default_context(cafile=str(tls.ca))
        context.load_cert_chain(tls.certificate, tls.key)

        async def record(error: Exception) -> None:
            refusals.put_nowait(str(error))

        return await nats.connect(
            access.url,
            user=access.user,
            password=access.password,
            tls=context,
            allow_reconnect=False,
            max_reconnect_attempts=1,
            error_cb=record,
            inbox_prefix=access.inbox_prefix,
        )


@pytest.fixture
async def job(tmp_path: Path) -> AsyncIterator[Job]:
    job = Job(tmp_path)
    with (tmp_path / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*job.server.command(), stdout=log, stderr=log)
    try:
        await asyncio.wait_for(job.server.wait_ready(), 20)
        yield job
    finally:
        process.kill()
        await asyncio.wait_for(process.wait(), 20)


@pytest.mark.parametrize("role", FORBIDDEN)
async def test_forbidden_subjects_are_refused(job: Job, role: Role) -> None:
    refusals: asyncio.Queue[str] = asyncio.Queue()
    client = await job.client(role, refusals)
    others = [inbox_prefix(other) for other in Role if other is not role]
    listened = [*STREAMS, ">", "*.>", "$JS.API.>", *(f"{prefix}.>" for prefix in others)]
    allowed: list[str] = []
    for subject in (*FORBIDDEN[role], *NEVER):
        await client.publish(subject, b"")
        allowed += await missing_refusal(client, refusals, f'for publish to "{subject}"')
    for subject in listened:
        await client.subscribe(subject)
        allowed += await missing_refusal(client, refusals, f'for subscription to "{subject}"')
    await client.close()
    assert allowed == []


async def missing_refusal(client: Client, refusals: asyncio.Queue[str], operation: str) -> list[str]:
    """Return the operation unless the server refuses it."""
    await client.flush()
    try:
        refusal = await asyncio.wait_for(refusals.get(), 5)
    except TimeoutError:
        return [operation]
    # The client reports the server's text in lower case.
    assert operation.lower() in refusal
    return []


async def test_every_role_does_its_work(job: Job) -> None:
    """A step over the bus: the scorer and the worker create streams before the driver connects."""
    buses = {role: await job.bus(role) for role in (*SCORERS, *GENERATORS)}
    for role in SCORERS:
        assert await buses[role].pull("rollouts", f"{role}-name", 1, 0.1) == []
    for role in GENERATORS:
        assert await buses[role].pull("work", "rollout", 1, 0.1) == []
    driver = await job.bus(Role.DRIVER)
    for subject in ("work", "rollouts", "scores", "refit-acks"):
        await driver.purge(subject)
    await driver.publish("refit", b"version", "0")
    await driver.publish("rollouts", b"asked again", "again")
    for role in GENERATORS:
        follower = buses[role].latest("refit")
        assert await asyncio.wait_for(anext(follower), 20) == b"version"
        await follower.aclose()  # type: ignore[attr-defined]
        await driver.publish("work", b"prompt", role)
        (item,) = await buses[role].pull("work", "rollout", 1, 20.0)
        await item.in_progress()
        await buses[role].publish("rollouts", b"rollout", role)
        await item.ack()
        await buses[role].publish("refit-acks", b"loaded", role)
    for role in SCORERS:
        scored = await buses[role].pull("rollouts", f"{role}-name", 8, 20.0)
        assert [delivery.data for delivery in scored] == [b"asked again", b"rollout", b"rollout"]
        for delivery in scored:
            await delivery.ack()
        await buses[role].publish("scores", b"score", role)
    counts = {"rollouts": 3, "scores": 3, "refit-acks": 2}
    received = {subject: await driver.pull(subject, "driver", 8, 20.0) for subject in counts}
    assert {subject: len(deliveries) for subject, deliveries in received.items()} == counts
    for bus in (*buses.values(), driver):
        await bus.close()


async def test_rollout_workers_follow_the_announcements_of_environments(job: Job) -> None:
    environment = await job.bus(Role.ENVIRONMENT)
    await environment.publish("environments", b"state", "1")
    for role in GENERATORS:
        bus = await job.bus(role)
        (announcement,) = await bus.pull("environments", f"environments-{role}-0", 8, 20.0)
        assert announcement.data == b"state"
        await announcement.ack()
        await bus.close()
    await environment.close()


async def test_discards_are_not_counted_without_the_permission(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    """Check a server with the permissions of an older release: one warning, and the bus works."""
    bus = await job.bus(Role.REWARD)
    following = asyncio.ensure_future(anext(bus.watch_discards("rollouts")))
    async with asyncio.timeout(20):
        while "messages that the bus discards are not counted" not in caplog.messages:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert await bus.pull("rollouts", "reward-a", 1, 0.1) == []
    assert not following.done()
    await bus.close()
    with pytest.raises(StopAsyncIteration):
        await asyncio.wait_for(following, 10)


async def test_refusal_is_in_the_error(job: Job) -> None:
    bus = await job.bus(Role.REWARD, publish_timeout=5.0)
    with pytest.raises(
        BusUnavailable, match=r"(?s)did not purge scores .*ermissions .iolation .*\.purge\.scores"
    ):
        await bus.purge("scores")
    await bus.close()


async def test_role_without_a_user_is_refused(job: Job) -> None:
    with pytest.raises(nats.errors.Error, match="Authorization Violation"):
        await job.client(Role.CRITIC, asyncio.Queue())
