"""Traces of a scorer over a real NATS server."""

from collections.abc import Awaitable, Callable

import pytest
from nats.protocol.command import hpub_cmd

from kubealign.v1 import rollout_pb2
from kubealign_services.messaging.jetstream.bus import JetStreamBus
from support.recorded_spans import record_spans
from support.traced_scoring import (
    check_malformed_headers_are_ignored,
    check_no_header_without_traces,
    check_scores_are_below_their_steps,
    score_rollouts,
)

pytestmark = pytest.mark.timeout(90, method="signal")

Connect = Callable[[], Awaitable[JetStreamBus]]


async def test_scores_are_below_their_steps(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    await check_scores_are_below_their_steps(await connect(), monkeypatch)


async def test_malformed_headers_are_ignored(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    await check_malformed_headers_are_ignored(await connect(), monkeypatch)


async def test_no_header_without_traces(connect: Connect) -> None:
    await check_no_header_without_traces(await connect())


async def test_headers_of_another_client_are_ignored(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check bytes that are no text, names without a value and a line that is no header."""
    recorder, bus = record_spans(monkeypatch), await connect()
    # Creates the stream.
    assert await bus.pull("rollouts", "auditor", 1, 0.05) == []
    lines = [b"traceparent: \xff\xfe-\x00", b"\xff: \xff", b"traceparent", b"no header", b"empty:"]
    for sample, line in enumerate(lines):
        rollout = rollout_pb2.Rollout(fence=1, group_id="0/1", sample=sample, purpose="train")
        headers = b"NATS/1.0\r\n" + line + b"\r\n\r\n"
        client = bus._connection.client
        await client._send_command(hpub_cmd("rollouts", "", headers, rollout.SerializeToString()))
    await bus._connection.client.flush()
    assert await score_rollouts(bus, len(lines)) == list(range(len(lines)))
    assert recorder.named("Score") == []
