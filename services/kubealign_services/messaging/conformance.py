"""Conformance checks for Bus implementations: `for check in CHECKS: await check(make)`.

`make(name, ack_wait, bounds)` connects to the same bus each time it is called within a check.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Protocol, cast

from kubealign_services.messaging.contract import Bus, BusUnavailable, Delivery, PayloadTooLarge
from kubealign_services.messaging.retention_limits import Bounds


class BusFactory(Protocol):
    """Connects to the bus under test as process `name`."""

    def __call__(
        self, name: str = "one", *, ack_wait: float = 30.0, bounds: Mapping[str, Bounds] | None = None
    ) -> Awaitable[Bus]: ...


BusCheck = Callable[[BusFactory], Awaitable[None]]


async def check_consumer_members_share_messages(make: BusFactory) -> None:
    """Check that each message reaches one member of each consumer."""
    bus, second_bus = await make(), await make("two")
    for index in range(6):
        await bus.publish("rollouts", b"%d" % index, f"id-{index}")
    first = await bus.pull("rollouts", "reward-helpful", 4, 5.0)
    second = await second_bus.pull("rollouts", "reward-helpful", 4, 5.0)
    assert texts(first) == ["0", "1", "2", "3"] and texts(second) == ["4", "5"], (texts(first), texts(second))
    assert texts(await second_bus.pull("rollouts", "reference", 10, 5.0)) == list("012345")
    assert await bus.pull("work", "rollout", 1, 0.05) == []


async def check_late_consumer_gets_earlier_messages(make: BusFactory) -> None:
    """Check that a new consumer gets all retained messages, and acknowledged messages never return."""
    bus = await make(ack_wait=0.5)
    await bus.publish("scores", b"early", "1")
    early = await bus.pull("scores", "driver", 8, 5.0)
    assert [delivery.attempt for delivery in early] == [1]
    for delivery in early:
        await delivery.ack()
    assert await bus.pull("scores", "driver", 8, 1.2) == []


async def check_message_ids_are_deduplicated(make: BusFactory) -> None:
    """Check that a second message with the same id is dropped, also after a purge; ids are separate for each
    subject.
    """
    bus = await make()
    await bus.publish("work", b"first", "1:g:0")
    await bus.publish("work", b"second", "1:g:0")
    await bus.publish("scores", b"third", "1:g:0")
    assert texts(await bus.pull("work", "rollout", 8, 5.0)) == ["first"]
    assert texts(await bus.pull("scores", "driver", 8, 5.0)) == ["third"]
    await bus.purge("work")
    await bus.publish("work", b"fourth", "1:g:0")
    await bus.publish("work", b"fifth", "1:g:1")
    assert texts(await bus.pull("work", "rollout", 8, 5.0)) == ["fifth"]


async def check_headers_arrive(make: BusFactory) -> None:
    """Check that headers reach every consumer and come with redeliveries, unchanged even if malformed; that
    they do not affect deduplication; and that a message without headers has none.
    """
    bus, second_bus = await make(), await make("two")
    headers = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    malformed = {"traceparent": "not-a-trace", "Of-Another-Sender": "grüße"}
    await bus.publish("work", b"traced", "1", headers)
    await bus.publish("work", b"repeated", "1", malformed)
    await bus.publish("work", b"malformed", "2", malformed)
    await bus.publish("work", b"without", "3")
    deliveries = await second_bus.pull("work", "rollout", 8, 5.0)
    assert texts(deliveries) == ["traced", "malformed", "without"]
    assert [dict(delivery.headers) for delivery in deliveries] == [headers, malformed, {}]
    await deliveries[0].retry()
    (again,) = await bus.pull("work", "rollout", 8, 5.0)
    assert (again.attempt, dict(again.headers)) == (2, headers)
    late = await bus.pull("work", "auditor", 8, 5.0)
    assert [dict(delivery.headers) for delivery in late] == [headers, malformed, {}]


async def check_unsettled_deliveries_return(make: BusFactory) -> None:
    """Check that an unsettled delivery goes to another member after the acknowledgement wait, with a higher
    attempt and the whole time on the bus as its age.
    """
    bus, second_bus = await make(ack_wait=1.0), await make("two", ack_wait=1.0)
    # Ages are exact after a message that has just been stored.
    await bus.publish("scores", b"new", "1")
    assert len(await second_bus.pull("scores", "driver", 1, 5.0)) == 1
    await bus.publish("work", b"item", "1")
    (lost,) = await bus.pull("work", "rollout", 1, 5.0)
    assert await second_bus.pull("work", "rollout", 1, 0.2) == []
    (again,) = await second_bus.pull("work", "rollout", 1, 10.0)
    assert (again.data, lost.attempt, again.attempt) == (b"item", 1, 2)
    # It was on the bus for the acknowledgement wait at least.
    assert again.age - lost.age >= 0.9 * bus.ack_wait, (lost.age, again.age)


async def check_in_progress_extends_ack_wait(make: BusFactory) -> None:
    """Check that work longer than the acknowledgement wait is not redelivered while its worker reports
    progress.
    """
    bus, second_bus = await make(ack_wait=1.0), await make("two", ack_wait=1.0)
    await bus.publish("work", b"long", "1")
    (delivery,) = await bus.pull("work", "rollout", 1, 5.0)
    for _ in range(4):
        assert await second_bus.pull("work", "rollout", 1, 0.4) == []
        await delivery.in_progress()
    await delivery.ack()
    assert await second_bus.pull("work", "rollout", 1, 1.5) == []


async def check_retry_and_reject(make: BusFactory) -> None:
    """Check that retry redelivers a message, after a delay if requested; reject ends its delivery to this
    consumer.
    """
    bus = await make()
    await bus.publish("work", b"item", "1")
    (delivery,) = await bus.pull("work", "rollout", 1, 5.0)
    await delivery.retry()
    (delivery,) = await bus.pull("work", "rollout", 1, 5.0)
    await delivery.retry(delay=0.6)
    assert await bus.pull("work", "rollout", 1, 0.1) == []
    (delivery,) = await bus.pull("work", "rollout", 1, 5.0)
    assert delivery.attempt == 3
    await delivery.reject()
    # Settling twice does nothing.
    await delivery.retry()
    assert await bus.pull("work", "rollout", 1, 0.3) == []
    assert texts(await bus.pull("work", "auditor", 1, 5.0)) == ["item"]


async def check_pull_returns_at_first_message(make: BusFactory) -> None:
    """Check that a pull of many returns with the first message, and takes no later message."""
    bus, second_bus = await make(), await make("two")
    pulling = asyncio.create_task(bus.pull("work", "rollout", 16, 30.0))
    await second_bus.publish("work", b"first", "1")
    first = await asyncio.wait_for(pulling, 10.0)
    await second_bus.publish("work", b"second", "2")
    assert texts(first) == ["first"]
    assert texts(await second_bus.pull("work", "rollout", 16, 5.0)) == ["second"]


async def check_concurrent_pulls(make: BusFactory) -> None:
    """Check that several pulls of one process wait concurrently; each message reaches one of them."""
    bus, second_bus = await make(), await make("two")
    pulls = [asyncio.create_task(bus.pull("work", "rollout", 4, 20.0)) for _ in range(4)]
    await asyncio.gather(*(second_bus.publish("work", b"%d" % index, str(index)) for index in range(40)))
    received = [text for pull in pulls for text in texts(await pull)]
    while more := await second_bus.pull("work", "rollout", 16, 0.2):
        received += texts(more)
    assert sorted(received, key=int) == [str(index) for index in range(40)], received


async def check_cancelled_pull_returns_messages(make: BusFactory) -> None:
    """Check that the messages of a cancelled pull go to another member at once, without the acknowledgement
    wait.
    """
    bus, second_bus = await make(), await make("two")
    assert await bus.pull("work", "rollout", 1, 0.05) == []
    for round_ in range(10):
        pulling = asyncio.create_task(bus.pull("work", "rollout", 1, 30.0))
        await asyncio.sleep(0.01)
        publishing = asyncio.create_task(second_bus.publish("work", b"%d" % round_, str(round_)))
        await asyncio.sleep(0.0002 * round_)
        pulling.cancel()
        (result,) = await asyncio.gather(pulling, return_exceptions=True)
        await publishing
        deliveries = result if isinstance(result, list) else await second_bus.pull("work", "rollout", 1, 10.0)
        assert texts(deliveries) == [str(round_)]
        await deliveries[0].ack()


async def check_cancelled_loop_ends(make: BusFactory) -> None:
    """Check that a pull or publish that succeeds at the moment of a cancellation does not swallow the
    cancellation.
    """
    bus, second_bus = await make(), await make("two")
    await bus.publish("work", b"", "first")

    async def pump() -> None:
        while True:
            for delivery in await bus.pull("work", "rollout", 4, 0.001):
                await delivery.ack()

    async def flood(name: int) -> None:
        for index in itertools.count():
            await second_bus.publish("work", b"x", f"{name}-{index}")

    for turn in range(40):
        loops = [asyncio.create_task(pump()), asyncio.create_task(flood(turn))]
        await asyncio.sleep(0.0003 * turn)
        for task in loops:
            task.cancel()
        _, stuck = await asyncio.wait(loops, timeout=5.0)
        assert not stuck, f"turn {turn}: {stuck} went on after it was cancelled"


async def check_latest_reaches_late_joiners(make: BusFactory) -> None:
    """Check that `refit` keeps one message; a late follower gets it, and then each newer one."""
    bus, second_bus = await make(), await make("two")
    await bus.publish("refit", b"v1", "1")
    await bus.publish("refit", b"v2", "2")
    seen: asyncio.Queue[bytes] = asyncio.Queue()

    async def follow() -> None:
        async for data in second_bus.latest("refit"):
            seen.put_nowait(data)

    following = asyncio.create_task(follow())
    assert await asyncio.wait_for(seen.get(), 10.0) == b"v2"
    await bus.publish("refit", b"v3", "3")
    assert await asyncio.wait_for(seen.get(), 10.0) == b"v3"
    await second_bus.close()
    await asyncio.wait_for(following, 10.0)
    assert seen.empty()


async def check_follower_can_leave(make: BusFactory) -> None:
    """Check that closing the iterator ends it; another follower can start on the same connection."""
    bus = await make()
    await bus.publish("refit", b"v1", "1")
    for _ in range(2):
        async with aclosing(cast("AsyncGenerator[bytes, None]", bus.latest("refit"))) as newest:
            assert await asyncio.wait_for(anext(newest), 10.0) == b"v1"


async def check_bounds_evict_oldest(make: BusFactory) -> None:
    """Check that the oldest messages are removed to make room for new ones."""
    bounds = {"work": Bounds(messages=3, size_bytes=1 << 20), "scores": Bounds(1000, size_bytes=4096)}
    bus = await make(bounds=bounds)
    for index in range(5):
        await bus.publish("work", b"%d" % index, str(index))
    assert texts(await bus.pull("work", "rollout", 8, 5.0)) == ["2", "3", "4"]
    for index in range(8):
        await bus.publish("scores", bytes(1024), str(index))
    remaining = await bus.pull("scores", "driver", 8, 5.0)
    assert 1 <= len(remaining) <= 4, len(remaining)


async def check_discards_are_counted(make: BusFactory) -> None:
    """Check that each consumer's loss is counted, that of a late consumer too, and nothing else."""
    bus = await make(bounds={"rollouts": Bounds(messages=4, size_bytes=1 << 20)})
    await bus.publish("rollouts", b"purged", "purged")
    await bus.purge("rollouts")
    totals: Counter[str] = Counter()
    counted = asyncio.Event()

    async def follow() -> None:
        async for discarded in bus.watch_discards("rollouts"):
            assert (discarded.subject, discarded.bounds.messages) == ("rollouts", 4)
            totals[discarded.consumer] += discarded.count
            counted.set()

    async def wait_for(expected: dict[str, int]) -> None:
        async with asyncio.timeout(20.0):
            while totals != expected:
                counted.clear()
                await counted.wait()

    following = asyncio.create_task(follow())
    # Receives everything; its acknowledgements come late or never.
    fast: list[Delivery] = []
    assert await bus.pull("rollouts", "slow", 1, 0.05) == []
    for index in range(10):
        await bus.publish("rollouts", b"%d" % index, str(index))
        fast += await bus.pull("rollouts", "fast", 1, 5.0)
    await wait_for({"slow": 6})
    assert texts(await bus.pull("rollouts", "slow", 3, 5.0)) == ["6", "7", "8"]
    assert texts(await bus.pull("rollouts", "late", 8, 5.0)) == ["6", "7", "8", "9"]
    await wait_for({"slow": 6, "late": 6})
    for delivery in fast:
        await delivery.ack()
    for index in range(10, 16):
        await bus.publish("rollouts", b"%d" % index, str(index))
    assert texts(await bus.pull("rollouts", "fast", 8, 5.0)) == ["12", "13", "14", "15"]
    await wait_for({"slow": 9, "late": 8, "fast": 2})
    await bus.close()
    await asyncio.wait_for(following, 10.0)


async def check_purge_removes_messages(make: BusFactory) -> None:
    """Check that a purge removes messages for every consumer; later messages are delivered."""
    bus = await make()
    await bus.publish("rollouts", b"old", "1")
    await bus.publish("scores", b"other", "1")
    (delivery,) = await bus.pull("rollouts", "driver", 1, 5.0)
    await bus.purge("rollouts")
    await delivery.retry()
    assert await bus.pull("rollouts", "driver", 1, 0.2) == []
    assert await bus.pull("rollouts", "reward", 1, 0.2) == []
    await bus.publish("rollouts", b"new", "2")
    assert texts(await bus.pull("rollouts", "driver", 8, 5.0)) == ["new"]
    assert texts(await bus.pull("scores", "driver", 8, 5.0)) == ["other"]


async def check_payload_size_limit(make: BusFactory) -> None:
    """Check that the largest allowed message arrives complete and one byte more is refused."""
    bus = await make(bounds={"work": Bounds(messages=4, size_bytes=64 << 20)})
    largest = bytes(bus.max_payload)
    await bus.publish("work", largest, "x" * 200, {"traceparent": "0" * 55})
    (delivery,) = await bus.pull("work", "rollout", 1, 10.0)
    assert delivery.data == largest
    try:
        await bus.publish("work", largest + b"!", "2")
    except PayloadTooLarge as error:
        assert str(bus.max_payload) in str(error) and str(bus.max_payload + 1) in str(error), error
    else:
        raise AssertionError("a message above max_payload was accepted")


async def check_misuse_raises(make: BusFactory) -> None:
    """Check that an unknown subject is refused, naming the known ones; a closed bus says so; closing ends
    pulls.
    """
    bus = await make()
    try:
        await bus.publish("rollout", b"", "1")
    except ValueError as error:
        assert "'rollout'" in str(error) and "rollouts" in str(error), error
    else:
        raise AssertionError("an unknown subject was accepted")
    waiting = asyncio.create_task(bus.pull("work", "rollout", 1, 60.0))
    await asyncio.sleep(0.1)
    await bus.close()
    await bus.close()
    assert await asyncio.wait_for(waiting, 10.0) == []
    try:
        await bus.publish("work", b"", "1")
    except BusUnavailable as error:
        assert "closed" in str(error), error
    else:
        raise AssertionError("a closed bus took a message")


def texts(deliveries: list[Delivery]) -> list[str]:
    """Return the payloads as text."""
    return [delivery.data.decode() for delivery in deliveries]


CHECKS: list[BusCheck] = [
    check_consumer_members_share_messages,
    check_late_consumer_gets_earlier_messages,
    check_message_ids_are_deduplicated,
    check_headers_arrive,
    check_unsettled_deliveries_return,
    check_in_progress_extends_ack_wait,
    check_retry_and_reject,
    check_pull_returns_at_first_message,
    check_concurrent_pulls,
    check_cancelled_pull_returns_messages,
    check_cancelled_loop_ends,
    check_latest_reaches_late_joiners,
    check_follower_can_leave,
    check_bounds_evict_oldest,
    check_discards_are_counted,
    check_purge_removes_messages,
    check_payload_size_limit,
    check_misuse_raises,
]
