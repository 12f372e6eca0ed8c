"""The dashboard of a cluster as a process: it listens, serves, and ends in good order when it is told to."""

import asyncio
import logging
import signal
import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fastapi import FastAPI

from kubealign.client.kubernetes_api import connect
from kubealign_services.dashboard.app import create_app
from kubealign_services.dashboard.cluster.access import ClusterAccess
from kubealign_services.dashboard.cluster.certificate import renewed
from kubealign_services.dashboard.cluster.figures import NoFigures, RedisFigures
from kubealign_services.dashboard.cluster.settings import Address, Settings, SettingsError
from kubealign_services.dashboard.server import Server

log = logging.getLogger(__name__)

_BACKLOG = 1024


class _Door(Server):
    """One address of the application. Whoever runs it heeds the signals."""

    def __init__(self, app: FastAPI, listener: socket.socket, **settings: Any) -> None:
        # Of several doors, none may end what the others still need: the application has no end of its own.
        super().__init__(app, log_config=None, lifespan="off", **settings)
        self._listener = listener
        # Now, not when it starts: a certificate that is no good is told at once.
        self.config.load()

    @property
    def tls(self) -> ssl.SSLContext | None:
        return self.config.ssl

    async def open(self) -> None:
        """Until `should_exit` is set."""
        await self.serve([self._listener])

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def run(settings: Settings) -> None:
    """Returns after SIGTERM or SIGINT. Raises SettingsError for what the administrator has to mend, and
    KubealignError where there is no cluster."""
    redis = settings.redis()
    api = await connect(settings.kubeconfig, seconds=settings.request_seconds)
    figures = NoFigures() if redis is None else RedisFigures(redis)
    async with ClusterAccess(api, figures, settings.namespaces, read_only=settings.read_only) as access:

        async def ready() -> str:
            return access.missing() or ""

        app = create_app(access, ready=ready)
        app.state.measures.watch("jobs", "Jobs that are known.", lambda: len(access.cache))
        app.state.measures.watch(
            "hears_changes", "1: the API server tells of changes.", lambda: not access.trouble()
        )
        await _served(_doors(app, settings), access, settings)


async def _served(doors: Sequence[_Door], access: ClusterAccess, settings: Settings) -> None:
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    serving = [asyncio.create_task(door.open()) for door in doors]
    others = [asyncio.create_task(told.wait()), asyncio.create_task(access.listening())]
    for door in doors:
        if door.tls and settings.tls_cert_file and settings.tls_key_file:
            others.append(
                asyncio.create_task(renewed(door.tls, settings.tls_cert_file, settings.tls_key_file))
            )
    try:
        done, _ = await asyncio.wait([*serving, *others], return_when=asyncio.FIRST_COMPLETED)
        log.info("told to stop" if told.is_set() else "ends")
        for door in doors:
            door.should_exit = True
        await asyncio.wait(serving)
        for task in (*done, *serving):
            task.result()
    finally:
        for task in (*serving, *others):
            task.cancel()
        await asyncio.wait([*serving, *others])


def _doors(app: FastAPI, settings: Settings) -> list[_Door]:
    tls = {"ssl_certfile": settings.tls_cert_file, "ssl_keyfile": settings.tls_key_file}
    listener = _listener("KUBEALIGN_LISTEN", settings.listen)
    try:
        doors = [_Door(app, listener, **(tls if settings.tls_cert_file else {}))]
    except OSError as error:
        # Of which ssl.SSLError is one.
        listener.close()
        raise SettingsError(f"KUBEALIGN_TLS_CERT_FILE held {settings.tls_cert_file}: {error}") from error
    if settings.listen_local is not None:
        doors.append(_Door(app, _listener("KUBEALIGN_LISTEN_LOCAL", settings.listen_local)))
    return doors


def _listener(variable: str, address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server((address.host, address.port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise SettingsError(
            f"{variable} held {address.host}:{address.port}: {error.strerror or error}"
        ) from error
