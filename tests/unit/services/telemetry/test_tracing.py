"""Spans of phases and calls: what they record of a failure."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import pytest
from opentelemetry.trace import StatusCode

from kubealign_services.telemetry.tracing import server_span, span
from support.recorded_spans import record_spans

OPEN = [
    pytest.param("train", partial(span, "train"), id="phase"),
    pytest.param(
        "kubealign.v1.Trainer/TrainStep",
        partial(
            server_span,
            "/kubealign.v1.Trainer/TrainStep",
            (("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),),
        ),
        id="call",
    ),
]


@pytest.mark.parametrize(("name", "open_span"), OPEN)
def test_an_error_is_recorded_without_its_text(
    monkeypatch: pytest.MonkeyPatch, name: str, open_span: Callable[[], AbstractContextManager[None]]
) -> None:
    recorder = record_spans(monkeypatch)
    with pytest.raises(ValueError, match="a prompt"), open_span():
        raise ValueError("cannot train on 'a prompt'")
    [ended] = recorder.named(name)
    assert ended.status.status_code is StatusCode.ERROR and ended.status.description == "ValueError"
    assert ended.attributes == {"error.type": "ValueError"}
    assert not ended.events


@pytest.mark.parametrize(("name", "open_span"), OPEN)
def test_cancelled_work_has_not_failed(
    monkeypatch: pytest.MonkeyPatch, name: str, open_span: Callable[[], AbstractContextManager[None]]
) -> None:
    recorder = record_spans(monkeypatch)
    with pytest.raises(asyncio.CancelledError), open_span():
        raise asyncio.CancelledError
    [ended] = recorder.named(name)
    assert ended.status.status_code is StatusCode.UNSET
    assert ended.attributes == {"kubealign.cancelled": True}
