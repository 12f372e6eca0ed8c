"""Restarts of the NATS server: stored messages survive, unsettled ones are redelivered."""

import asyncio
from typing import Protocol

import nats
import nats.errors
import pytest

from kubealign.process_settings import NatsAccess, TlsFiles
from kubealign_services.messaging.conformance import texts
from kubealign_services.messaging.contract import Bus, BusUnavailable, Delivery
from kubealign_services.messaging.jetstream.bus import JetStreamBus

pytestmark = pytest.mark.timeout(90, method="signal")


class Server(Protocol):
    access: NatsAccess

    def start(self) -> None: ...
    def kill(self) -> None: ...
    def wipe(self) -> None: ...


class Connect(Protocol):
    async def __call__(
        self, name: str = "one", *, ack_wait: float = 30.0, publish_timeout: float = 60.0
    ) -> JetStreamBus: ...


async def pull_all(bus: Bus, subject: str, consumer: str, count: int) -> list[Delivery]:
    """Pull this many deliveries; the test's own timeout applies."""
    received: list[Delivery] = []
    while len(received) < count:
        received += await bus.pull(subject, consumer, 16, 5.0)
    return received


async def put_latest(bus: Bus, seen: asyncio.Queue[bytes]) -> None:
    """Put the newest message of `refit`, and each newer one, into the queue."""
    async for data in bus.latest("refit"):
        seen.put_nowait(data)


async def test_stored_messages_survive_a_restart(server: Server, connect: Connect) -> None:
    """Check that unsettled messages are redelivered and unread ones delivered.

    Some acknowledged messages may be redelivered: the server persists acknowledgements periodically.
    """
    bus = await connect(ack_wait=2.0)
    for index in range(30):
        await bus.publish("rollouts", b"%d" % index, str(index))
    acknowledged = await bus.pull("rollouts", "driver", 10, 5.0)
    assert [int(delivery.data) for delivery in acknowledged] == list(range(10))
    for delivery in acknowledged:
        await delivery.ack()
    deliveries = await bus.pull("rollouts", "driver", 5, 5.0)
    server.kill()
    server.start()
    received: set[int] = set()
    async with asyncio.timeout(60):
        while not received >= set(range(10, 30)):
            for delivery in await bus.pull("rollouts", "driver", 16, 5.0):
                received.add(int(delivery.data))
                await delivery.ack()
    assert {int(delivery.data) for delivery in deliveries} <= received <= set(range(30))
    assert texts(await bus.pull("rollouts", "auditor", 64, 5.0)) == [str(index) for index in range(30)]


async def test_publishing_survives_a_restart(server: Server, connect: Connect) -> None:
    """Publish many messages at once, some while the server is stopped: each is stored once."""
    bus, reader = await connect(), await connect("two")
    await bus.publish("work", b"0", "0")
    publishing = [
        asyncio.create_task(bus.publish("work", b"%d" % index, str(index))) for index in range(1, 400)
    ]
    await asyncio.sleep(0.05)
    server.kill()
    late = [asyncio.create_task(bus.publish("work", b"%d" % index, str(index))) for index in range(400, 420)]
    await asyncio.sleep(0.5)
    assert not any(task.done() for task in late)
    server.start()
    await asyncio.gather(*publishing, *late)
    received = [int(delivery.data) for delivery in await pull_all(reader, "work", "rollout", 420)]
    assert sorted(received) == list(range(420))
    assert await reader.pull("work", "rollout", 16, 0.3) == []


async def test_waiting_pull_survives_a_restart(server: Server, connect: Connect) -> None:
    """Check that the waiting pull returns nothing and that the next one gets the message."""
    bus, other = await connect(), await connect("two")
    waiting = asyncio.create_task(bus.pull("work", "rollout", 4, 60.0))
    await asyncio.sleep(0.3)
    server.kill()
    assert await asyncio.wait_for(waiting, 20) == []
    pulling = asyncio.create_task(pull_all(bus, "work", "rollout", 1))
    await asyncio.sleep(0.3)
    server.start()
    await other.publish("work", b"after", "1")
    (delivery,) = await asyncio.wait_for(pulling, 30)
    assert delivery.data == b"after"


async def test_pull_without_a_server_waits_for_its_timeout(server: Server, connect: Connect) -> None:
    bus = await connect()
    await bus.publish("work", b"x", "1")
    server.kill()
    loop = asyncio.get_running_loop()
    assert await bus.pull("work", "rollout", 4, 0.0) == []
    begin = loop.time()
    assert await bus.pull("work", "rollout", 4, 1.0) == []
    # The pull waited: repeated pulls are not a busy loop.
    assert loop.time() - begin >= 0.9


async def test_streams_are_recreated_after_a_lost_store(server: Server, connect: Connect) -> None:
    """Check that the first process that uses streams and consumers creates them again."""
    bus, other = await connect(), await connect("two")
    seen: asyncio.Queue[bytes] = asyncio.Queue()
    following = asyncio.create_task(put_latest(other, seen))
    await bus.publish("refit", b"v1", "1")
    await bus.publish("work", b"old", "1")
    assert len(await other.pull("work", "rollout", 1, 5.0)) == 1
    assert await asyncio.wait_for(seen.get(), 20) == b"v1"
    server.kill()
    server.wipe()
    server.start()
    await bus.publish("work", b"new", "1")
    await bus.publish("refit", b"v2", "1")
    assert [delivery.data for delivery in await pull_all(other, "work", "rollout", 1)] == [b"new"]
    assert await asyncio.wait_for(seen.get(), 40) == b"v2"
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


async def test_only_a_lost_store_is_reported(server: Server, connect: Connect) -> None:
    """Check the report also when another process has already recreated the streams."""
    bus, other = await connect(), await connect("two")
    for each in (bus, other):
        await each.purge("work")
    losses = bus.watch_data_loss("work")
    loss = asyncio.ensure_future(anext(losses))
    server.kill()
    server.start()
    await bus.publish("work", b"x", "1")
    assert await bus.pull("work", "rollout", 1, 5.0)
    assert not loss.done()
    server.kill()
    server.wipe()
    server.start()
    await other.publish("work", b"new", "1")
    await pull_all(bus, "work", "rollout", 1)
    await asyncio.wait_for(loss, 20)
    again = asyncio.ensure_future(anext(losses))
    await bus.publish("work", b"y", "2")
    assert not again.done(), "one loss is told once"
    await bus.close()
    with pytest.raises(StopAsyncIteration):
        await again


async def test_deliveries_of_a_lost_store_settle_nothing_in_the_new_one(
    server: Server, connect: Connect
) -> None:
    """Check equal sequence numbers: the first message of the old store and of the new one."""
    bus, other = await connect(ack_wait=2.0), await connect("two", ack_wait=2.0)
    await bus.publish("work", b"old", "1")
    (old,) = await pull_all(bus, "work", "rollout", 1)
    server.kill()
    server.wipe()
    server.start()
    await bus.publish("work", b"new", "2")
    (new,) = await pull_all(other, "work", "rollout", 1)
    assert new.data == b"new"
    assert await bus.pull("work", "rollout", 1, 0.5) == []
    await old.ack()
    # Redelivered, since its consumer has not settled the message.
    (back,) = await pull_all(bus, "work", "rollout", 1)
    assert (back.data, back.attempt) == (b"new", 2)


async def test_follower_gets_the_newest_message_once(connect: Connect) -> None:
    bus, other = await connect(), await connect("two")
    seen: list[bytes] = []
    news = asyncio.Event()

    async def follow() -> None:
        async for data in other.latest("refit"):
            seen.append(data)
            news.set()

    following = asyncio.create_task(follow())
    await bus.publish("refit", b"v1", "1")
    await asyncio.wait_for(news.wait(), 20)
    news.clear()
    # Simulates a server that restarts without the consumer: a new consumer delivers the last message again.
    context = bus._connection.client.jetstream()
    (follower,) = await context.consumers_info("refit")
    await context.delete_consumer("refit", follower.name)
    # A pull that reaches the server during the deletion gets no answer: the follower asks again after 35 s.
    async with asyncio.timeout(60):
        while not await context.consumers_info("refit"):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    await asyncio.sleep(0.3)
    await bus.publish("refit", b"v2", "2")
    await asyncio.wait_for(news.wait(), 40)
    assert seen == [b"v1", b"v2"]
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


async def test_follower_misses_nothing_when_the_server_restarts_between_its_pulls(
    server: Server, connect: Connect
) -> None:
    """Check a pull that starts after the client has noticed the lost connection and before the bus has:
    nats-py buffers its request and sends it to the next server, when nobody waits for the answer.
    """
    bus, other = await connect(), await connect("two", ack_wait=2.0)
    seen: asyncio.Queue[bytes] = asyncio.Queue()

    async def follow() -> None:
        async for data in other.latest("refit"):
            server.kill()
            async with asyncio.timeout(20):
                while not other._connection.client.is_reconnecting:  # noqa: ASYNC110
                    await asyncio.sleep(0)
            assert other._connection.connected.is_set()
            seen.put_nowait(data)

    following = asyncio.create_task(follow())
    for version in range(3):
        await bus.publish("refit", b"%d" % version, str(version))
        assert await asyncio.wait_for(seen.get(), 20) == b"%d" % version
        server.start()
        # The buffered request must reach the server before the next message.
        async with asyncio.timeout(20):
            while not other._connection.client.is_connected:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            await other._connection.client.flush()
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


async def test_follower_gets_a_message_that_was_lost_on_its_way(server: Server, connect: Connect) -> None:
    """Check that a message which the server has sent to a lost connection is sent again."""
    bus, other = await connect(), await connect("two", ack_wait=1.0)
    seen: asyncio.Queue[bytes] = asyncio.Queue()
    following = asyncio.create_task(put_latest(other, seen))
    await bus.publish("refit", b"v1", "1")
    assert await asyncio.wait_for(seen.get(), 20) == b"v1"
    context = bus._connection.client.jetstream()
    (follower,) = await context.consumers_info("refit")
    # Another request of the same consumer takes a message and does not acknowledge it.
    other_client = bus._connection.client
    inbox = other_client.new_inbox()
    lost = await other_client.subscribe(inbox)
    request = f"$JS.API.CONSUMER.MSG.NEXT.refit.{follower.name}"
    await other_client.publish(request, b'{"batch": 1}', reply=inbox)
    async with asyncio.timeout(20):
        while (await context.consumers_info("refit"))[0].num_waiting < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    for version in ("2", "3"):
        await bus.publish("refit", f"v{version}".encode(), version)
    assert (await lost.next_msg(20)).data in (b"v2", b"v3")
    while await asyncio.wait_for(seen.get(), 20) != b"v3":
        pass
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


async def test_publish_fails_at_its_deadline(server: Server, connect: Connect) -> None:
    bus = await connect(publish_timeout=1.0)
    await bus.publish("work", b"x", "1")
    server.kill()
    with pytest.raises(BusUnavailable, match=r"did not store a message on work within 1 s: not connected"):
        await bus.publish("work", b"y", "2")


async def test_settling_without_a_server_is_no_error(server: Server, connect: Connect) -> None:
    bus = await connect()
    for index in range(3):
        await bus.publish("work", b"x", str(index))
    first, second, third = await bus.pull("work", "rollout", 3, 5.0)
    server.kill()
    await first.ack()
    await second.in_progress()
    await bus.close()
    await third.retry()


async def test_connection_closed_by_the_server_is_replaced(server: Server, connect: Connect) -> None:
    """Check the replacement: nats-py does not reconnect when the server states a reason for closing."""
    bus = await connect()
    await bus.publish("work", b"first", "1")
    await bus._connection.client._process_err("'Slow Consumer'")
    await bus.publish("work", b"second", "2")
    received = await pull_all(bus, "work", "rollout", 2)
    assert [delivery.data for delivery in received] == [b"first", b"second"]


async def test_client_that_gave_up_is_replaced(
    server: Server, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check the replacement: nats-py gives up at an unexpected error while it reconnects."""
    bus = await connect()
    await bus.publish("work", b"first", "1")

    async def fail() -> None:
        raise ValueError("not what it expects")

    monkeypatch.setattr(bus._connection.client, "_process_connect_init", fail)
    server.kill()
    server.start()
    await asyncio.wait_for(bus.publish("work", b"second", "2"), 20)
    received = await pull_all(bus, "work", "rollout", 2)
    assert [delivery.data for delivery in received] == [b"first", b"second"]


async def test_unreachable_server_is_reported(server: Server, driver_tls: TlsFiles) -> None:
    server.kill()
    with pytest.raises(
        BusUnavailable,
        match=r"127\.0\.0\.1:\d+ did not accept a connection within 1 s: ConnectionRefusedError",
    ):
        await JetStreamBus.connect(server.access, driver_tls, name="x", timeout=1.0)


async def test_wrong_password_is_refused(server: Server, driver_tls: TlsFiles) -> None:
    access = server.access.model_copy(update={"password": "wrong"})
    with pytest.raises(BusUnavailable, match=r"(?i)authorization"):
        await JetStreamBus.connect(access, driver_tls, name="x", timeout=3.0)


async def test_connection_without_the_jobs_certificate_is_refused(
    server: Server, driver_tls: TlsFiles
) -> None:
    stranger = driver_tls.model_copy(update={"ca": driver_tls.certificate})
    with pytest.raises(BusUnavailable, match="did not accept a connection"):
        await JetStreamBus.connect(server.access, stranger, name="x", timeout=2.0)
    with pytest.raises((nats.errors.Error, OSError)):
        await nats.connect(
            server.access.url, user=server.access.user, password=server.access.password, allow_reconnect=False
        )
