"""Prometheus metrics of the dashboard."""

import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kubealign_dashboard.streams.hub import Hub

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_OTHER = "OTHER"
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5, 5.0, 10.0)


class DashboardMetrics:
    """The metrics of one application."""

    def __init__(self, hub: Hub) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._answers = Counter(
            "kubealign_dashboard_requests_total",
            "Responses, by route and status.",
            ("method", "route", "status"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "kubealign_dashboard_request_seconds",
            "Duration from a request to the start of its response.",
            ("route",),
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self.add_gauge("streams", "Open streams.", lambda: hub.streams)
        self.add_gauge("followed_jobs", "Jobs that are followed by a stream.", lambda: hub.followed_jobs)

    def add_gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Add a gauge kubealign_dashboard_NAME whose value is read at each scrape."""
        Gauge(f"kubealign_dashboard_{name}", text, registry=self._registry).set_function(read)

    def register(self, collector: Collector) -> None:
        """Add the metrics of a collector."""
        self._registry.register(collector)

    def record_response(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a response. Methods that no route has count as OTHER: a client may invent any number."""
        if method not in _METHODS:
            method = _OTHER
        self._answers.labels(method, route, status).inc()
        self._seconds.labels(route).observe(seconds)

    def render(self) -> Response:
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)


class MetricsMiddleware:
    """Middleware that counts and times the responses."""

    def __init__(self, app: ASGIApp, metrics: DashboardMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                # The route's pattern, never the path: names must not make new series.
                route = str(getattr(scope.get("route"), "path", "") or "none")
                seconds = time.perf_counter() - started
                self._metrics.record_response(scope["method"], route, message["status"], seconds)
            await send(message)

        await self._app(scope, receive, counted)
