"""The cluster's dashboard as a process: listens, serves, and shuts down in order."""

import asyncio
import logging
import signal
import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fastapi import FastAPI

from kubealign.kube.api import connect
from kubealign_dashboard.app import create_app
from kubealign_dashboard.cluster.access import ClusterAccess
from kubealign_dashboard.cluster.certificate_reload import reload_on_change
from kubealign_dashboard.cluster.redis_telemetry import NoTelemetry, RedisTelemetry
from kubealign_dashboard.cluster.settings import DashboardSettings, ListenAddress, SettingsError
from kubealign_dashboard.job_metrics.exporter import JobMetricsExporter
from kubealign_dashboard.server import DashboardServer
from kubealign_dashboard.streams.hub import StreamLimits

log = logging.getLogger(__name__)

_BACKLOG = 1024


class _AddressServer(DashboardServer):
    """A server for one address of the application. The caller handles signals."""

    def __init__(self, app: FastAPI, listener: socket.socket, **settings: Any) -> None:
        # One of several servers must not shut down the application that the others still use: no lifespan.
        super().__init__(app, log_config=None, lifespan="off", **settings)
        self._listener = listener
        # Loaded now, so that an invalid certificate is reported at start-up.
        self.config.load()

    @property
    def tls(self) -> ssl.SSLContext | None:
        return self.config.ssl

    async def run_listener(self) -> None:
        """Serve until `should_exit` is set."""
        await self.serve([self._listener])

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def telemetry_of(settings: DashboardSettings) -> RedisTelemetry | NoTelemetry:
    """Return the telemetry of the jobs of this cluster.

    Raises:
        SettingsError: The password file cannot be read.
    """
    redis = settings.redis()
    return NoTelemetry() if redis is None else RedisTelemetry(redis, settings.cluster_id)


async def run(settings: DashboardSettings) -> None:
    """Run until SIGTERM or SIGINT.

    Raises:
        SettingsError: A setting is invalid.
        KubealignError: The cluster cannot be reached.
    """
    telemetry = telemetry_of(settings)
    api = await connect(settings.kubeconfig, timeout=settings.request_seconds)
    async with ClusterAccess(api, telemetry, settings.namespaces, read_only=settings.read_only) as access:

        async def ready() -> str:
            return access.not_ready_reason() or ""

        limits = StreamLimits(per_caller=settings.streams_per_user)
        exporter = JobMetricsExporter(
            lambda: access.cache.in_order("created"), telemetry, access.authorize_metrics
        )
        app = create_app(access, ready=ready, stream_limits=limits, job_metrics=exporter)
        app.state.metrics.register(access.unreadable_objects)
        app.state.metrics.add_gauge("jobs", "Jobs in the cache.", lambda: len(access.cache))
        app.state.metrics.add_gauge(
            "hears_changes", "1: changes are received from the API server.", lambda: not access.watch_error()
        )
        await _serve_until_stopped(_build_servers(app, settings), access, settings)


async def _serve_until_stopped(
    servers: Sequence[_AddressServer], access: ClusterAccess, settings: DashboardSettings
) -> None:
    stop_requested = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, stop_requested.set)
    serving = [asyncio.create_task(server.run_listener()) for server in servers]
    background = [asyncio.create_task(stop_requested.wait()), asyncio.create_task(access.wait_for_failure())]
    for server in servers:
        if server.tls and settings.tls_cert_file and settings.tls_key_file:
            background.append(
                asyncio.create_task(
                    reload_on_change(server.tls, settings.tls_cert_file, settings.tls_key_file)
                )
            )
    try:
        done, _ = await asyncio.wait([*serving, *background], return_when=asyncio.FIRST_COMPLETED)
        log.info("stopping on a signal" if stop_requested.is_set() else "stopping")
        for server in servers:
            server.should_exit = True
        await asyncio.wait(serving)
        for task in (*done, *serving):
            task.result()
    finally:
        for task in (*serving, *background):
            task.cancel()
        await asyncio.wait([*serving, *background])


def _build_servers(app: FastAPI, settings: DashboardSettings) -> list[_AddressServer]:
    tls = {"ssl_certfile": settings.tls_cert_file, "ssl_keyfile": settings.tls_key_file}
    listener = _listener("KUBEALIGN_LISTEN", settings.listen)
    try:
        servers = [_AddressServer(app, listener, **(tls if settings.tls_cert_file else {}))]
    except OSError as error:
        # ssl.SSLError is an OSError.
        listener.close()
        raise SettingsError(f"KUBEALIGN_TLS_CERT_FILE held {settings.tls_cert_file}: {error}") from error
    if settings.listen_local is not None:
        servers.append(_AddressServer(app, _listener("KUBEALIGN_LISTEN_LOCAL", settings.listen_local)))
    return servers


def _listener(variable: str, address: ListenAddress) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server((address.host, address.port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise SettingsError(
            f"{variable} held {address.host}:{address.port}: {error.strerror or error}"
        ) from error
