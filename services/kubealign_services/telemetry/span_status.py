"""Status of spans whose work has failed, without data of the job."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from opentelemetry.trace import Span, StatusCode


def mark_failed(span: Span, kind: str) -> None:
    """Set the status of a span to ERROR.

    Args:
        kind: Class of the error. Its text is not recorded: it may contain data of the job.
    """
    span.set_attribute("error.type", kind)
    span.set_status(StatusCode.ERROR, kind)


@contextmanager
def failures_marked(spans: Sequence[Span]) -> Iterator[None]:
    """Mark the spans as failed if the block raises.

    Cancelled work is no failure: it is stopped, or goes on elsewhere.
    """
    try:
        yield
    except asyncio.CancelledError:
        for span in spans:
            span.set_attribute("kubealign.cancelled", True)
        raise
    except Exception as error:
        for span in spans:
            mark_failed(span, type(error).__name__)
        raise
