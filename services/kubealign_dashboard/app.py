"""The FastAPI application: REST API, streams and web page."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager

from fastapi import APIRouter, FastAPI, Request, Response
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from kubealign import __version__
from kubealign_dashboard import page_files
from kubealign_dashboard.access import Access
from kubealign_dashboard.api import openapi as openapi_document
from kubealign_dashboard.api.recent_steps import RecentSteps
from kubealign_dashboard.api.routes import (
    changes,
    comparison,
    health,
    jobs,
    labels,
    metrics,
    processes,
    session,
    streams,
)
from kubealign_dashboard.job_metrics.exporter import JobMetricsExporter
from kubealign_dashboard.streams.hub import Hub, StreamLimits
from kubealign_dashboard.streams.job_feed import PollIntervals
from kubealign_dashboard.web import problems
from kubealign_dashboard.web.authentication import AuthenticationMiddleware
from kubealign_dashboard.web.json_response import json_response
from kubealign_dashboard.web.parameters import API_PREFIX
from kubealign_dashboard.web.prometheus import DashboardMetrics, MetricsMiddleware
from kubealign_dashboard.web.security_headers import KnownHostsMiddleware, SecurityHeadersMiddleware

_ABOUT = """AlignmentJobs as Kubernetes stores them, with the metrics, samples and logs of running jobs.

Every error is `application/problem+json` (RFC 9457)."""


async def _always_ready() -> str:
    return ""


def create_app(
    access: Access,
    *,
    hosts: Collection[str] | None = None,
    ready: Callable[[], Awaitable[str]] = _always_ready,
    poll_intervals: PollIntervals | None = None,
    stream_limits: StreamLimits | None = None,
    job_metrics: JobMetricsExporter | None = None,
) -> FastAPI:
    """Create the application.

    `app.state.hub.close()` ends the streams: call it before the server waits for its connections. The
    access and its backends remain the caller's to close.

    Args:
        hosts: Host names under which this service is reached; None: any.
        ready: Returns why the service is not ready, or an empty text.
        poll_intervals: Intervals at which followed jobs are polled.
        stream_limits: Maximum numbers of open streams; None: the defaults.
        job_metrics: Exports the metrics of jobs to scrapers; None: there is no such page.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            app.state.hub.close()

    app = FastAPI(
        title="kubealign",
        version=__version__,
        description=_ABOUT,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    hub = Hub(access.reader, poll_intervals, stream_limits)
    dashboard_metrics = DashboardMetrics(hub)
    app.state.access = access
    app.state.hub = hub
    app.state.metrics = dashboard_metrics
    app.state.recent_steps = RecentSteps(access.reader)
    app.include_router(_monitoring_router(dashboard_metrics, ready))
    if job_metrics is not None:
        app.include_router(_job_metrics_router(job_metrics))
    app.include_router(_api_router())
    page_files.mount_page(app)
    problems.add_error_handlers(app)
    openapi_document.complete_openapi_document(app)
    # The middleware added last sees a request first.
    app.add_middleware(AuthenticationMiddleware, access=access)
    if hosts is not None:
        app.add_middleware(KnownHostsMiddleware, hosts=hosts)
    app.add_middleware(SecurityHeadersMiddleware)
    app.add_middleware(MetricsMiddleware, metrics=dashboard_metrics)
    return app


def _api_router() -> APIRouter:
    api = APIRouter(dependencies=openapi_document.SECURITY_SCHEMES)
    for part in (session, jobs, changes, metrics, comparison, labels, processes, health, streams):
        api.include_router(part.router)

    @api.get(f"{API_PREFIX}/openapi.json", include_in_schema=False)
    async def openapi(request: Request) -> Response:
        return json_response(request.app.openapi())

    return api


def _monitoring_router(dashboard_metrics: DashboardMetrics, ready: Callable[[], Awaitable[str]]) -> APIRouter:
    """Build the routes for kubelets and Prometheus."""
    router = APIRouter(include_in_schema=False)

    @router.get("/healthz")
    async def healthz() -> Response:
        return Response("ok\n", media_type="text/plain")

    @router.get("/readyz")
    async def readyz() -> Response:
        reason = await ready()
        return Response(f"{reason or 'ok'}\n", 503 if reason else 200, media_type="text/plain")

    @router.get("/metrics")
    async def metrics() -> Response:
        return dashboard_metrics.render()

    return router


def _job_metrics_router(exporter: JobMetricsExporter) -> APIRouter:
    """Build the route for a Prometheus with a token: the page names jobs, unlike /metrics."""
    router = APIRouter(include_in_schema=False)

    @router.get("/metrics/jobs")
    async def job_metrics(request: Request) -> Response:
        return Response(await exporter.page(request.state.caller), media_type=CONTENT_TYPE_LATEST)

    return router
