"""Spans of the code under test, recorded in this process in place of an endpoint."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, Tracer, format_span_id, format_trace_id

from kubealign_services.telemetry import message_tracing, tracing


@dataclass(frozen=True)
class SpanRecorder:
    """Recorder of the spans that end while it is open."""

    exporter: InMemorySpanExporter
    tracer: Tracer

    def named(self, name: str) -> list[ReadableSpan]:
        """Return the ended spans of this name, in the order of their ends."""
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    @contextmanager
    def step(self, number: int) -> Iterator[str]:
        """Open a span as the driver does for a step. Yields its name in headers, as `parent_of`."""
        with self.tracer.start_as_current_span("step", attributes={"kubealign.step": number}) as span:
            yield _name(span.get_span_context())


def record_spans(monkeypatch: pytest.MonkeyPatch) -> SpanRecorder:
    """Record all spans until the test ends.

    The provider of a process can be set only once, so the modules get tracers of a provider of this test.
    """
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("kubealign")
    for module in (tracing, message_tracing):
        monkeypatch.setattr(module, "_tracer", tracer)
    return SpanRecorder(exporter, tracer)


def parent_of(span: ReadableSpan) -> str:
    """Return the parent of a span as TRACE-SPAN, the part of a traceparent header that names it."""
    assert span.parent is not None, f"{span.name} has no parent"
    return _name(span.parent)


def _name(ids: SpanContext) -> str:
    return f"{format_trace_id(ids.trace_id)}-{format_span_id(ids.span_id)}"
