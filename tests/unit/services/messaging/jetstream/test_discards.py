"""Losses counted from samples, beside a model of a stream that counts each message."""

from dataclasses import dataclass, field

from hypothesis import example, given
from hypothesis import strategies as st

from kubealign_services.messaging.jetstream.discards import ConsumerPosition, DiscardCounter, StreamSample
from kubealign_services.messaging.retention_limits import Bounds

BOUNDS = Bounds(messages=3, size_bytes=1 << 20)
CONSUMERS = ("a", "b")
OPERATIONS = st.lists(
    st.sampled_from(
        [
            "sample",
            "publish",
            "publish",
            *(f"{verb} {name}" for verb in ("create", "read", "redeliver") for name in CONSUMERS),
        ]
    ),
    max_size=80,
)


@dataclass
class ModelConsumer:
    """Consumer that knows which messages it has received."""

    position: int
    deliveries: int = 0
    received: set[int] = field(default_factory=set)


class Model:
    """Stream of numbered messages that keeps the newest ones."""

    def __init__(self) -> None:
        self.last = 0
        self.consumers: dict[str, ModelConsumer] = {}
        self.redelivered = False

    @property
    def first(self) -> int:
        return max(1, self.last - BOUNDS.messages + 1)

    def apply(self, operation: str) -> None:
        verb, _, name = operation.partition(" ")
        consumer = self.consumers.get(name)
        if verb == "publish":
            self.last += 1
        elif verb == "create":
            # A server sets a new consumer right before the first message.
            self.consumers.setdefault(name, ModelConsumer(self.first - 1))
        elif verb == "read" and consumer is not None and consumer.position < self.last:
            consumer.position = max(consumer.position + 1, self.first)
            consumer.received.add(consumer.position)
            consumer.deliveries += 1
        elif verb == "redeliver" and consumer is not None and consumer.received:
            consumer.deliveries += 1
            self.redelivered = True

    def sample(self) -> StreamSample:
        positions = {
            name: ConsumerPosition(consumer.position, consumer.deliveries)
            for name, consumer in self.consumers.items()
        }
        return StreamSample(self.first, positions, BOUNDS)

    def lost(self) -> dict[str, int]:
        """Return the messages that are neither stored nor received, by consumer."""
        stored_before = set(range(1, self.first))
        return {name: len(stored_before - consumer.received) for name, consumer in self.consumers.items()}


@given(OPERATIONS)
@example(["create a", "read a", *["publish"] * 6, "read a"])
@example(["create a", "sample", *["publish"] * 6, "sample", *["publish"] * 3, "read a", "sample"])
def test_counts_what_was_lost_and_never_more(operations: list[str]) -> None:
    model, counter = Model(), DiscardCounter(start=0)
    totals = dict.fromkeys(CONSUMERS, 0)
    for operation in [*operations, "sample"]:
        model.apply(operation)
        if operation == "sample":
            for name, count in counter.count(model.sample()).items():
                assert count > 0
                totals[name] += count
            lost = model.lost()
            assert all(totals[name] <= count for name, count in lost.items())
            if not model.redelivered:
                assert all(totals[name] == count for name, count in lost.items())


def test_earlier_messages_do_not_count() -> None:
    """Check a purge up to message 10: consumers that had not read that far have lost nothing."""
    counter = DiscardCounter(start=10)
    positions = {"slow": ConsumerPosition(10, 4), "new": ConsumerPosition(10, 0)}
    assert counter.count(StreamSample(11, positions, BOUNDS)) == {}
    # 11 to 20 are stored, 18 to 20 remain; "slow" has received 11 and 18 meanwhile.
    positions = {"slow": ConsumerPosition(18, 6), "new": ConsumerPosition(10, 0)}
    assert counter.count(StreamSample(18, positions, BOUNDS)) == {"slow": 6, "new": 7}
