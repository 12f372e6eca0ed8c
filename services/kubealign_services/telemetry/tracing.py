"""OpenTelemetry traces: one trace for each step of the driver, in which the calls of other roles take part.

Spans are sent by OTLP over HTTP where the environment names an endpoint (OTEL_EXPORTER_OTLP_ENDPOINT or
OTEL_EXPORTER_OTLP_TRACES_ENDPOINT); otherwise they cost next to nothing. They contain names, durations and
step numbers, and no data of the job. `message_tracing` adds the work that is pulled from the bus.
https://opentelemetry.io/docs/specs/otel/protocol/exporter/
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from opentelemetry import propagate, trace
from opentelemetry.trace import SpanKind
from opentelemetry.util.types import AttributeValue

from kubealign_services.telemetry.span_status import failures_marked

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
#: Time for the last spans when a process ends.
_FLUSH_SECONDS = 5.0
#: Key of the metadata of a call, or header of a message, that makes it part of a trace (W3C Trace Context).
TRACE_PARENT = "traceparent"

_tracer = trace.get_tracer("kubealign")


def is_configured(environment: Mapping[str, str] = os.environ) -> bool:
    """Return True if the environment names an endpoint for traces."""
    return any(environment.get(name) for name in _ENDPOINTS)


@asynccontextmanager
async def send_traces(job: str, namespace: str, role: str, process: str) -> AsyncIterator[None]:
    """Send the spans of this process while the context is open, if an endpoint is configured.

    An endpoint that does not answer costs spans and an error in the log, and delays nothing but the end of
    the process, by a few seconds.
    """
    if not is_configured():
        yield
        return
    # Half a second of imports that jobs without traces need not wait for.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create(
        {
            "service.namespace": "kubealign",
            "service.name": f"kubealign-{role}",
            "service.instance.id": process,
            "kubealign.job": job,
            "kubealign.namespace": namespace,
        }
    )
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        await asyncio.to_thread(provider.force_flush, int(_FLUSH_SECONDS * 1000))


@contextmanager
def span(name: str, attributes: Mapping[str, AttributeValue] | None = None) -> Iterator[None]:
    """Measure a part of the current trace, or the whole of a new one."""
    with _current_span(name, attributes=attributes):
        yield


def record_span(name: str, started: float, ended: float) -> None:
    """Add a part of the current trace that has been measured already.

    Args:
        started: Time of its start, by time.monotonic().
        ended: Time of its end, by time.monotonic().
    """
    offset = time.time_ns() - time.monotonic_ns()
    one = _tracer.start_span(name, start_time=offset + int(started * 1e9))
    one.end(end_time=offset + int(ended * 1e9))


def trace_metadata() -> tuple[tuple[str, str], ...]:
    """Return the metadata that makes a call part of the current trace; empty: there is no trace."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return tuple(carrier.items())


@contextmanager
def server_span(method: str, metadata: Sequence[tuple[str, str | bytes]] | None) -> Iterator[None]:
    """Measure a call that this process serves, as a part of the caller's trace; nothing if it has none."""
    carrier = {key: value for key, value in metadata or () if isinstance(value, str)}
    if TRACE_PARENT not in carrier:
        yield
        return
    context = propagate.extract(carrier)
    with _current_span(method.lstrip("/"), context=context, kind=SpanKind.SERVER):
        yield


@contextmanager
def _current_span(name: str, **options: Any) -> Iterator[None]:
    """Open a span. It records only the class of an error: its text may contain data of the job."""
    with (
        _tracer.start_as_current_span(
            name, record_exception=False, set_status_on_exception=False, **options
        ) as current,
        failures_marked([current]),
    ):
        yield
