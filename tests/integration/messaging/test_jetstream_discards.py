"""Messages that a stream discards before a consumer has received them are counted, and nothing else is.

The oracle numbers the messages and compares what was published with what was received.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Protocol

import pytest

from kubealign_services.messaging.contract import Bus, DiscardedMessages
from kubealign_services.messaging.jetstream import discards
from kubealign_services.messaging.jetstream.bus import JetStreamBus
from kubealign_services.messaging.retention_limits import Bounds

pytestmark = pytest.mark.timeout(120, method="signal")

CONSUMERS = ("reward-a", "reward-b")


class Server(Protocol):
    def start(self) -> None: ...
    def kill(self) -> None: ...
    def wipe(self) -> None: ...


class Connect(Protocol):
    async def __call__(
        self, name: str = "one", *, ack_wait: float = 30.0, bounds: Mapping[str, Bounds] | None = None
    ) -> JetStreamBus: ...


@pytest.fixture(autouse=True)
def _frequent_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discards, "_POLL_SECONDS", 0.05)


class LossCount:
    """Losses that a bus has reported so far, by consumer."""

    def __init__(self) -> None:
        self.totals: Counter[str] = Counter()
        self.reports: list[DiscardedMessages] = []
        self._change = asyncio.Condition()

    async def follow(self, bus: Bus) -> None:
        async for discarded in bus.watch_discards("rollouts"):
            async with self._change:
                self.totals[discarded.consumer] += discarded.count
                self.reports.append(discarded)
                self._change.notify_all()

    async def wait_for(self, expected: Mapping[str, int]) -> None:
        """Wait until the totals are these."""
        try:
            async with asyncio.timeout(20), self._change:
                while any(self.totals[name] != count for name, count in expected.items()):
                    await self._change.wait()
        except TimeoutError:
            raise AssertionError(f"{dict(self.totals)} were counted, {dict(expected)} were lost") from None


@asynccontextmanager
async def counted_losses(bus: Bus) -> AsyncIterator[LossCount]:
    """Count the losses of `rollouts` from an empty stream on."""
    await bus.purge("rollouts")
    count = LossCount()
    following = asyncio.create_task(count.follow(bus))
    try:
        yield count
        assert not following.done()
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def receive(bus: Bus, consumer: str, count: int, received: set[int], acks: bool = True) -> None:
    """Add the numbers of up to `count` available messages to `received`."""
    for delivery in await bus.pull("rollouts", consumer, count, 0.05):
        received.add(int(delivery.data[:8]))
        if acks:
            await delivery.ack()


@pytest.mark.parametrize("bounds", [Bounds(50, 64 << 20), Bounds(100_000, 64 << 10)], ids=["count", "bytes"])
async def test_losses_of_a_slow_consumer(connect: Connect, bounds: Bounds) -> None:
    """Check two processes of one consumer, of which none sees the gaps of the other, beside a fast one."""
    driver = await connect(bounds={"rollouts": bounds})
    readers = [await connect(f"reader-{index}", bounds={"rollouts": bounds}) for index in range(2)]
    received: dict[str, set[int]] = {name: set() for name in CONSUMERS}
    published = 0
    async with counted_losses(driver) as losses:
        for burst in range(12):
            for _ in range(40):
                await driver.publish("rollouts", b"%08d" % published + bytes(1000), str(published))
                published += 1
                if published % 20 == 0:
                    await receive(driver, "reward-b", 64, received["reward-b"])
            await receive(readers[burst % 2], "reward-a", 10, received["reward-a"])
        for _ in range(3):
            await receive(readers[0], "reward-a", 64, received["reward-a"])
        lost = {name: published - len(received[name]) for name in CONSUMERS}
        assert lost["reward-a"] > 100
        assert lost["reward-b"] == 0
        await losses.wait_for(lost)
        assert {report.bounds for report in losses.reports} == {bounds}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("bounds", [Bounds(100_000, 64 << 20), Bounds(40, 64 << 20)], ids=["ample", "small"])
async def test_no_false_alarm(server: Server, connect: Connect, bounds: Bounds, seed: int) -> None:
    """Check acknowledgements, redelivery, purges, restarts and a wiped store, in a random order.

    Where the stream has room, nothing may be counted; otherwise never more than was not received.
    """
    chance = random.Random(seed)
    bus = await connect(bounds={"rollouts": bounds}, ack_wait=0.5)
    received: dict[str, set[int]] = {name: set() for name in CONSUMERS}
    published = 0
    async with counted_losses(bus) as losses:
        for _ in range(60):
            event = chance.choices(
                ["publish", "receive", "hold", "return", "purge", "restart", "wipe"], [30, 30, 12, 8, 2, 2, 1]
            )[0]
            consumer = chance.choice(CONSUMERS)
            match event:
                case "publish":
                    for _ in range(chance.randint(1, 15)):
                        await bus.publish("rollouts", b"%08d" % published, str(published))
                        published += 1
                case "receive" | "hold":
                    await receive(bus, consumer, 8, received[consumer], acks=event == "receive")
                case "return":
                    for delivery in await bus.pull("rollouts", consumer, 4, 0.05):
                        received[consumer].add(int(delivery.data[:8]))
                        await delivery.retry()
                case "purge":
                    await bus.purge("rollouts")
                case _:
                    server.kill()
                    if event == "wipe":
                        server.wipe()
                    server.start()
            for name in CONSUMERS:
                assert losses.totals[name] <= published - len(received[name]), (seed, event)
        await asyncio.sleep(0.2)
        if bounds.messages > published:
            assert losses.totals == {}
        for name in CONSUMERS:
            assert losses.totals[name] <= published - len(received[name])
