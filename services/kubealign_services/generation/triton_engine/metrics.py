"""Exposes a Triton server's own metrics among the worker's; they are read at each scrape."""

from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPException

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

_TIMEOUT_SECONDS = 2.0


class TritonMetrics(Collector):
    """All metrics of the server at `address()` (host:port, or None where no server runs), under the server's
    names: nv_inference_...
    """

    def __init__(self, address: Callable[[], str | None]) -> None:
        self._address = address

    def describe(self) -> list[Metric]:
        """Return nothing: the metric names are known only when the server is read."""
        return []

    def collect(self) -> Iterator[Metric]:
        address = self._address()
        if address is not None:
            yield from text_string_to_metric_families(_read(address))


def _read(address: str) -> str:
    """Return the metrics text, or an empty string while the server is restarting and does not answer."""
    connection = HTTPConnection(address, timeout=_TIMEOUT_SECONDS)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    except (OSError, HTTPException):
        return ""
    finally:
        connection.close()
