"""gRPC server of a role: mutual TLS, health, reflection, and authorization by the contract."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from sys import modules
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from kubealign.process_settings import MAX_MESSAGE_BYTES, TlsFiles
from kubealign_services.runtime.rpc.access import OPEN_SERVICES, AccessInterceptor
from kubealign_services.runtime.rpc.call_reporting import CallObserver, CallReportInterceptor

log = logging.getLogger(__name__)

GRPC_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # A peer that vanished without closing the connection is detected within a minute.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    # Otherwise Linux lets two servers listen at one port, and each gets half of the calls.
    ("grpc.so_reuseport", 0),
)


class PortInUse(OSError):
    """Another process listens at the address. Names the address and the remedy."""


@dataclass(frozen=True)
class _GeneratedService:
    name: str
    add: Any


class RpcServer:
    """Serves while its context is open; NOT_SERVING until `set_serving(True)`.

    Args:
        servicers: Instances of generated `...Servicer` classes.
        listen: host:port, port 0 for any free one.
        grace: Seconds that calls in progress get at shutdown.

    Raises:
        PortInUse: The port is taken.
        TypeError: A servicer derives from no generated class.
    """

    def __init__(
        self,
        listen: str,
        tls: TlsFiles,
        servicers: Sequence[object],
        observe: CallObserver,
        grace: float = 5.0,
    ) -> None:
        self._listen = listen
        self._grace = grace
        self._health = health.aio.HealthServicer()
        self._server = grpc.aio.server(
            interceptors=(CallReportInterceptor(observe), AccessInterceptor()), options=GRPC_OPTIONS
        )
        self._names = []
        for servicer in servicers:
            service = _generated_service(servicer)
            service.add(servicer, self._server)
            self._names.append(service.name)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection((*self._names, *OPEN_SERVICES), self._server)
        self._credentials = grpc.ssl_server_credentials(
            [(tls.key.read_bytes(), tls.certificate.read_bytes())],
            root_certificates=tls.ca.read_bytes(),
            require_client_auth=True,
        )
        #: host:port that the server listens at, with the actual port.
        self.address = listen

    async def __aenter__(self) -> Self:
        await self.set_serving(False)
        try:
            port = self._server.add_secure_port(self._listen, self._credentials)
        except RuntimeError as error:
            raise PortInUse(
                f"cannot listen at {self._listen}: end the process that has it, or choose another port"
            ) from error
        self.address = f"{self._listen.rpartition(':')[0]}:{port}"
        await self._server.start()
        log.info("listening", extra={"address": self.address, "services": self._names})
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._health.enter_graceful_shutdown()
        await self._server.stop(self._grace)

    async def set_serving(self, serving: bool) -> None:
        """Set the `grpc.health.v1` status of the server and of each of its services."""
        states = health_pb2.HealthCheckResponse
        for name in ("", *self._names):
            await self._health.set(name, states.SERVING if serving else states.NOT_SERVING)


def _generated_service(servicer: object) -> _GeneratedService:
    """Return the service that a generated `...Servicer` implements, with the generated function that
    registers it.
    """
    for base in type(servicer).__mro__:
        if base.__module__.endswith("_pb2_grpc") and base.__name__.endswith("Servicer"):
            generated = modules[base.__module__]
            # Not always imported yet: a service may have no messages of its own.
            messages = import_module(base.__module__.removesuffix("_grpc"))
            service = messages.DESCRIPTOR.services_by_name[base.__name__.removesuffix("Servicer")]
            return _GeneratedService(service.full_name, getattr(generated, f"add_{base.__name__}_to_server"))
    raise TypeError(f"{type(servicer).__name__} derives from no generated ...Servicer class")
