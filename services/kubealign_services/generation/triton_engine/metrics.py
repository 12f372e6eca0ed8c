"""A Triton server's own metrics among the worker's: read when somebody reads these."""

from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPException

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

_SECONDS = 2.0


class TritonMetrics(Collector):
    """Everything that the server at `address()` (host:port, None: there is none now) tells, by the names that
    it gives: nv_inference_..."""

    def __init__(self, address: Callable[[], str | None]) -> None:
        self._address = address

    def describe(self) -> list[Metric]:
        """Nothing: which there are is known when the server is asked."""
        return []

    def collect(self) -> Iterator[Metric]:
        address = self._address()
        if address is not None:
            yield from text_string_to_metric_families(_read(address))


def _read(address: str) -> str:
    """Empty where nobody answers: the server is just being started again."""
    connection = HTTPConnection(address, timeout=_SECONDS)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    except (OSError, HTTPException):
        return ""
    finally:
        connection.close()
