"""Checks that a scorer takes part in the traces of its requests, on any bus."""

import asyncio
from collections.abc import Sequence

import pytest

from kubealign.v1 import rollout_pb2, scoring_pb2
from kubealign_services.messaging.contract import Bus
from kubealign_services.scoring.worker import ScoreWorker
from kubealign_services.telemetry.message_tracing import trace_headers
from support.recorded_spans import SpanRecorder, parent_of, record_spans

_SECONDS = 20

#: Values of the header that name no span.
MALFORMED = [
    "",
    "not-a-trace",
    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
    "00-00000000000000000000000000000000-b7ad6b7169203331-01",
    "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
    "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "00-0AF7651916CD43DD8448EB211C80319C-B7AD6B7169203331-01",
    "00-grüße-\N{SNOWMAN}-01",
    "0" * 900,
]


async def publish_rollout(bus: Bus, sample: int) -> None:
    """Publish a rollout in the current trace, as the driver and rollout workers do."""
    rollout = rollout_pb2.Rollout(fence=1, group_id="0/1", sample=sample, purpose="train")
    await bus.publish("rollouts", rollout.SerializeToString(), str(sample), trace_headers())


async def score_rollouts(bus: Bus, count: int) -> list[int]:
    """Score the rollouts on the bus. Return the samples that have a score, in order."""

    async def score(rollouts: Sequence[rollout_pb2.Rollout]) -> list[scoring_pb2.Score]:
        return [
            scoring_pb2.Score(group_id=each.group_id, sample=each.sample, reward=1.0) for each in rollouts
        ]

    worker = asyncio.create_task(ScoreWorker(bus, "reward-even", frozenset({"train"}), score).run())
    samples: list[int] = []
    try:
        async with asyncio.timeout(_SECONDS):
            while len(samples) < count:
                for delivery in await bus.pull("scores", "driver", count, 1.0):
                    samples.append(scoring_pb2.Score.FromString(delivery.data).sample)
                    await delivery.ack()
    finally:
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
    return sorted(samples)


async def check_scores_are_below_their_steps(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check one call with the rollouts of two steps, and with one that has no trace."""
    recorder = record_spans(monkeypatch)
    with recorder.step(1) as first:
        await publish_rollout(bus, 0)
        await publish_rollout(bus, 1)
    with recorder.step(2) as second:
        await publish_rollout(bus, 2)
    await publish_rollout(bus, 3)
    assert await score_rollouts(bus, 4) == [0, 1, 2, 3]
    assert _counts(recorder) == {first: 2, second: 1}


async def check_malformed_headers_are_ignored(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that rollouts with any header are scored, and that only a well-formed one gives a span."""
    recorder = record_spans(monkeypatch)
    for sample, value in enumerate(MALFORMED):
        rollout = rollout_pb2.Rollout(fence=1, group_id="0/1", sample=sample, purpose="train")
        headers = {"traceparent": value, "tracestate": value, "Of-Another-Sender": value}
        await bus.publish("rollouts", rollout.SerializeToString(), str(sample), headers)
    with recorder.step(1) as step:
        await publish_rollout(bus, len(MALFORMED))
    assert await score_rollouts(bus, len(MALFORMED) + 1) == list(range(len(MALFORMED) + 1))
    assert _counts(recorder) == {step: 1}


async def check_no_header_without_traces(bus: Bus) -> None:
    """Check that a process which sends no traces adds no header to its messages."""
    await publish_rollout(bus, 0)
    (delivery,) = await bus.pull("rollouts", "auditor", 1, 5.0)
    assert dict(delivery.headers) == {}
    assert await score_rollouts(bus, 1) == [0]
    (delivery,) = await bus.pull("scores", "auditor", 1, 5.0)
    assert dict(delivery.headers) == {}


def _counts(recorder: SpanRecorder) -> dict[str, int]:
    """Return parent -> number of rollouts of the spans of the scorer."""
    counts = {}
    for span in recorder.named("Score"):
        attributes = span.attributes or {}
        assert attributes["kubealign.scorer"] == "reward-even"
        assert attributes["messaging.destination.name"] == "rollouts"
        assert span.kind.name == "CONSUMER" and span.status.is_unset
        counts[parent_of(span)] = int(str(attributes["kubealign.rollouts"]))
    return counts
