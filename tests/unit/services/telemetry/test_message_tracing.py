"""Trace context of bus messages, and traces of a scorer over the in-memory bus."""

import asyncio

import pytest

from kubealign_services.messaging.memory import MemoryBus
from kubealign_services.telemetry.message_tracing import (
    batch_spans,
    continue_trace,
    trace_headers,
    work_span,
)
from support.recorded_spans import parent_of, record_spans
from support.traced_scoring import (
    MALFORMED,
    check_malformed_headers_are_ignored,
    check_no_header_without_traces,
    check_scores_are_below_their_steps,
)

pytestmark = pytest.mark.timeout(60)

_PARENT = "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331"
_HEADER = f"00-{_PARENT}-01"


async def test_scores_are_below_their_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    await check_scores_are_below_their_steps(MemoryBus(), monkeypatch)


async def test_malformed_headers_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    await check_malformed_headers_are_ignored(MemoryBus(), monkeypatch)


async def test_no_header_without_traces() -> None:
    await check_no_header_without_traces(MemoryBus())


def test_headers_name_the_current_span(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = record_spans(monkeypatch)
    with recorder.step(1) as step:
        headers = trace_headers()
    assert list(headers) == ["traceparent"]
    assert headers["traceparent"].startswith(f"00-{step}-")
    assert trace_headers() == {}


def test_results_have_the_context_of_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that spans and messages of the work are children of the publisher's span, not of each other."""
    recorder = record_spans(monkeypatch)
    with continue_trace({"traceparent": _HEADER, "tracestate": "vendor=1"}):
        with work_span("Generate", "work", {"kubealign.attempt": 2}):
            assert trace_headers() == {"traceparent": _HEADER}
        assert trace_headers() == {"traceparent": _HEADER}
    assert trace_headers() == {}
    (span,) = recorder.named("Generate")
    assert parent_of(span) == _PARENT
    assert span.attributes == {
        "messaging.system": "nats",
        "messaging.destination.name": "work",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "kubealign.attempt": 2,
    }


def test_a_process_without_traces_passes_the_context_on() -> None:
    """Check a worker whose pod has no endpoint: the scorers' spans still find their step."""
    with continue_trace({"traceparent": _HEADER}), work_span("Generate", "work", {}) as span:
        assert not span.is_recording()
        assert trace_headers() == {"traceparent": _HEADER}


def test_work_that_is_not_sampled_has_no_span(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = record_spans(monkeypatch)
    unsampled = _HEADER[:-2] + "00"
    with continue_trace({"traceparent": unsampled}), work_span("Generate", "work", {}):
        assert trace_headers() == {"traceparent": unsampled}
    assert recorder.named("Generate") == []


@pytest.mark.parametrize("value", MALFORMED)
def test_a_malformed_header_is_no_header(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = record_spans(monkeypatch)
    for headers in ({"traceparent": value}, {}):
        with continue_trace(headers), work_span("Generate", "work", {}) as span:
            assert trace_headers() == {}
            assert not span.is_recording()
        with batch_spans("Score", "rollouts", [headers], lambda count: {}) as spans:
            assert [span.is_recording() for span in spans] == [False]
    assert recorder.exporter.get_finished_spans() == ()


def test_an_error_is_recorded_without_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = record_spans(monkeypatch)
    prompt = "text of a prompt"
    with (
        pytest.raises(ValueError),
        continue_trace({"traceparent": _HEADER}),
        work_span("Generate", "work", {}),
    ):
        raise ValueError(prompt)
    headers = [{"traceparent": _HEADER}]
    with pytest.raises(ValueError), batch_spans("Score", "rollouts", headers, lambda count: {}):
        raise ValueError(prompt)
    for span in recorder.exporter.get_finished_spans():
        assert span.status.status_code.name == "ERROR"
        assert (span.attributes or {})["error.type"] == "ValueError"
        assert prompt not in span.to_json()
    assert len(recorder.exporter.get_finished_spans()) == 2


def test_cancelled_work_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = record_spans(monkeypatch)
    with (
        pytest.raises(asyncio.CancelledError),
        continue_trace({"traceparent": _HEADER}),
        work_span("Generate", "work", {}),
    ):
        raise asyncio.CancelledError
    (span,) = recorder.named("Generate")
    assert span.status.is_unset and (span.attributes or {})["kubealign.cancelled"] is True
