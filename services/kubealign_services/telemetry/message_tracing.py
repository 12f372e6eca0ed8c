"""Trace context of bus messages: makes work that a worker pulls from the bus a part of its publisher's trace.

The header `traceparent` of a message (W3C Trace Context) names the span that was current where the work was
requested. For the driver that is `step`, or a phase that encloses the request, such as `judge`. The phases
`generate` and `score` of a step are recorded once they have ended, so no span can be below them.

The span of the work is a child of that span, also where groups are generated ahead of the step that trains on
them: it then begins, and may end, after its parent. A link in place of the parent would start a trace of its
own for each group, and the traces of the steps would lack the work.

A worker publishes its results in the context of the request and not of its own span: a scorer scores samples
of several groups in one call, so this call is a child of the step and not of one of the groups.

Only `traceparent` is sent: its length is fixed, and headers count towards the size limit of a message. A
message whose header is missing or malformed has no span; the work is the same.
https://www.w3.org/TR/trace-context/, https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from opentelemetry import context, trace
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from kubealign_services.telemetry.span_status import failures_marked
from kubealign_services.telemetry.tracing import TRACE_PARENT

_propagator = TraceContextTextMapPropagator()
_tracer = trace.get_tracer("kubealign")


def trace_headers() -> dict[str, str]:
    """Return the headers that make a message a part of the current trace; empty: there is no trace."""
    if not trace.get_current_span().get_span_context().is_valid:
        return {}
    carrier: dict[str, str] = {}
    _propagator.inject(carrier)
    return {TRACE_PARENT: carrier[TRACE_PARENT]}


@contextmanager
def continue_trace(headers: Mapping[str, str]) -> Iterator[None]:
    """Make the publisher's span of a message the current one; do nothing if the headers name none."""
    parent = _publisher_context(headers)
    if parent is None:
        yield
        return
    token = context.attach(parent)
    try:
        yield
    finally:
        context.detach(token)


@contextmanager
def work_span(name: str, subject: str, attributes: Mapping[str, AttributeValue]) -> Iterator[Span]:
    """Measure the work of one message within `continue_trace`; outside of a trace nothing is recorded.

    Args:
        subject: Subject of the message.
    """
    current = trace.get_current_span()
    if not current.get_span_context().is_valid:
        yield INVALID_SPAN
        return
    with _ended_spans([_start(name, subject, context.get_current(), attributes)]) as (span,):
        yield span


@contextmanager
def batch_spans(
    name: str,
    subject: str,
    headers: Sequence[Mapping[str, str]],
    attributes: Callable[[int], Mapping[str, AttributeValue]],
) -> Iterator[list[Span]]:
    """Measure one piece of work on several messages: one span for each span that published some of them.

    Yields the span of each message, in the order of `headers`.

    Args:
        subject: Subject of the messages.
        headers: Headers of each message.
        attributes: Returns the attributes of a span for its number of messages.
    """
    counts = Counter(each[TRACE_PARENT] for each in headers if TRACE_PARENT in each)
    spans: dict[str, Span] = {}
    for trace_parent, count in counts.items():
        parent = _publisher_context({TRACE_PARENT: trace_parent})
        if parent is not None:
            spans[trace_parent] = _start(name, subject, parent, attributes(count))
    with _ended_spans(list(spans.values())):
        yield [spans.get(each.get(TRACE_PARENT, ""), INVALID_SPAN) for each in headers]


def _publisher_context(headers: Mapping[str, str]) -> context.Context | None:
    """Return the context of the span that the headers name; None if they name none."""
    if TRACE_PARENT not in headers:
        return None
    extracted = _propagator.extract({TRACE_PARENT: headers[TRACE_PARENT]})
    return extracted if trace.get_current_span(extracted).get_span_context().is_valid else None


def _start(
    name: str, subject: str, parent: context.Context, attributes: Mapping[str, AttributeValue]
) -> Span:
    messaging = {
        "messaging.system": "nats",
        "messaging.destination.name": subject,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
    }
    return _tracer.start_span(name, parent, SpanKind.CONSUMER, {**messaging, **attributes})


@contextmanager
def _ended_spans(spans: list[Span]) -> Iterator[list[Span]]:
    """End the spans with the block, and mark them as failed if the block raises."""
    try:
        with failures_marked(spans):
            yield spans
    finally:
        for span in spans:
            span.end()
